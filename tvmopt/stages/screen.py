"""Screen stage: which map of dtypes keeps the accuracy on the evaluation samples.

The analysis judges maps on the calibration samples, to which weights and biases were fitted, so
evaluation refuses some; and few samples show of few maps that they keep the accuracy. To find that
out by building one takes some 20 s. Here ONNX Runtime emulates the chosen map, and a bisection of
the slower or the faster ones finds the fastest that is likely to keep the accuracy. Evaluation
judges its compiled form. Promotion judges it on held-out samples, which took no part in the choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tvmopt.config import ScreenConfig
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.drop_interval import ERRORS_OF_INTERVAL, interval_words
from tvmopt.quantize.dtype_map import WORTH_A_DOUBT, DtypeMap, number_after, numbered
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.calibrate import read_ranges
from tvmopt.stages.emulated_accuracy import EmulatedAccuracy, is_refused
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.sensitivity import read_sensitivity

SCREEN_FILE = "screen.csv"
#: Metric with the number of the map to build.
MAP_METRIC = "dtype_map"
# Of the time limit: the first map, whose samples the others are measured on. Outputs of the float
# model are known then.
_SHARE_OF_FIRST = 0.3
_ERRORS_IN_DOUBT = 0.5  # standard errors with which the drop of a doubtful map counts
_LEAST_S = 0.1  # for a map, so that its limit is one


def screen(
    config: ScreenConfig,
    model: Path,
    sensitivity_dir: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    calibrate_dir: Path | None = None,
) -> StageResult:
    """Return the number of the fastest map that is likely to keep the accuracy, as a metric.

    The compiled model is judged on more samples, and the held-out ones are others. So a drop of
    fidelity counts with one standard error: the limit is then kept with a probability of 84 %.
    Where a map saves a tenth of the time or more, half of one is enough (69 %). Where no map but
    float32 keeps the limit so, the one with the least drop within the limit is taken.

    Where the first map keeps the accuracy, faster ones from ``config.least`` on are measured, else
    slower ones. The last map, float32, needs no measurement. Where time ends before a map keeps the
    accuracy, the one that would be measured next is taken.

    Args:
        config: Configuration of the stage.
        model: The ONNX file.
        sensitivity_dir: Output of the sensitivity stage, with maps.
        out_dir: Folder for the table of the maps that were measured.
        progress: Called before each map.
        data: The user's data; its evaluation part is measured. None for random inputs.
        calibrate_dir: Output of the calibrate stage; needed where a map has int8 layers.

    Raises:
        ConfigError, ModelError: The model or the data cannot be used.
    """
    start, limit_s, limit = time.perf_counter(), config.time_limit_s, config.max_accuracy_drop
    found = read_sensitivity(sensitivity_dir)
    ranges = read_ranges(calibrate_dir) if calibrate_dir is not None else None
    maps = numbered(found.dtype_maps)
    emulate = EmulatedAccuracy(config, model, found, data, ranges)
    measured: dict[int, Accuracy | None] = {}

    def measure(number: int) -> float | None:
        """Return the likely drop of a map; None where time ended before the first's samples did."""
        left_s = limit_s - (time.perf_counter() - start)
        if measured and limit_s and left_s <= 0:
            return None
        if not measured:
            left_s *= _SHARE_OF_FIRST
        progress(len(measured), len(maps), f"map {number}")
        accuracy = emulate(maps[number], max(_LEAST_S, left_s) if limit_s else 0.0)
        seen = max((one.samples for one in measured.values() if one is not None), default=0)
        if accuracy is not None and accuracy.samples < seen and not is_refused(accuracy, limit):
            return None
        measured[number] = accuracy
        return _likely_drop(accuracy)

    number = _fastest(found.dtype_maps, config, measure)
    if not maps[number].layers:
        number = _within(measured, limit, number)
    else:
        number = _worth_a_doubt(measured, maps, number, limit)
    _write(out_dir / SCREEN_FILE, measured)
    metrics = {
        MAP_METRIC: float(number),
        "screened_maps": float(len(measured)),
        "screen_s": time.perf_counter() - start,
    }
    lines = [f"map {n} ({_dtypes(maps[n])}): {_words(one)}" for n, one in sorted(measured.items())]
    why = "float32" if not maps[number].layers else "not measured, for time"
    if number in measured:
        why = f"the fastest found that is likely to lose at most {limit:g}"
        if _likely_drop(measured[number], _ERRORS_IN_DOUBT) > limit:
            why = f"none found is likely to lose at most {limit:g}, and this one loses least"
    return StageResult(metrics, {}, [*lines, f"map {number} is taken: {why}"])


def _fastest(
    maps: Sequence[DtypeMap], config: ScreenConfig, measure: Callable[[int], float | None]
) -> int:
    """Return the number of the fastest map whose likely drop is within the limit.

    Slower maps lose less. After a map that loses too much comes the one that is expected to keep
    the accuracy, or the middle of what is left, in turn.

    Args:
        maps: All maps.
        config: The limit, the first map and the least number.
        measure: Returns the likely drop of a map by its number; None where time has ended.
    """
    limit, numbers = config.max_accuracy_drop, numbered(maps)
    last = max(numbers)
    number, least = (min(max(n, min(numbers)), last) for n in (config.first, config.least))
    refused, accepted, aims = least - 1, last, True
    if number == last:  # float32, which needs no measurement
        number = (refused + accepted) // 2
    while accepted - refused > 1:
        drop = measure(number)
        if drop is None:
            return number if accepted == last else accepted
        following = None
        if drop <= limit:
            accepted = number
        else:
            refused = number
            following = number_after(maps, number, drop, limit)
        if aims and following is not None and following < accepted:
            number, aims = following, False
        else:
            number, aims = (refused + accepted) // 2, True
    return accepted


def _within(measured: Mapping[int, Accuracy | None], limit: float, otherwise: int) -> int:
    """Return the map with the least drop within the limit, if any."""
    drops = {n: one.drop for n, one in measured.items() if one is not None and one.drop <= limit}
    return min(drops, key=lambda n: drops[n], default=otherwise)


def _worth_a_doubt(
    measured: Mapping[int, Accuracy | None], maps: Mapping[int, DtypeMap], chosen: int, limit: float
) -> int:
    """Return the fastest map that may lose too much, where that is worth it; else the chosen one.

    Outliers among few samples make standard errors large: 44 images left PicoDet in a map that
    takes 1.5 times as long as one that keeps the limit.
    """
    most_s = WORTH_A_DOUBT * maps[chosen].predicted_s
    doubtful = [
        n
        for n, one in measured.items()
        if maps[n].predicted_s <= most_s and _likely_drop(one, _ERRORS_IN_DOUBT) <= limit
    ]
    return min(doubtful, key=lambda n: maps[n].predicted_s, default=chosen)


def _likely_drop(measured: Accuracy | None, errors: float = 1.0) -> float:
    """Return the drop, of fidelity with standard errors; infinite without an accuracy.

    Counts of labelled rows have no such margin: few of them would refuse every map.
    """
    if measured is None:
        return math.inf
    if not measured.fidelity or measured.interval is None:
        return measured.drop
    return measured.drop + errors * (measured.interval[1] - measured.drop) / ERRORS_OF_INTERVAL


def _dtypes(one: DtypeMap) -> str:
    return ", ".join(f"{one.dtypes.count(d)} layers in {d}" for d in sorted({*one.dtypes}))


def _words(measured: Accuracy | None) -> str:
    if measured is None:
        return "the metric fails on its outputs"
    interval = "" if measured.interval is None else f", {interval_words(measured.interval)}"
    return f"drop {measured.drop:+.4f} on {measured.samples} samples{interval}"


def _write(path: Path, measured: dict[int, Accuracy | None]) -> None:
    rows = (
        (n, a.drop, a.low, a.high, a.samples, a.cosine) if a is not None else (n, *[""] * 5)
        for n, a in sorted(measured.items())
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        write_csv(file, ("map", "drop", "low", "high", "samples", "cosine"), rows)

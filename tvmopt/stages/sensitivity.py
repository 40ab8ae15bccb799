"""Sensitivity stage: accuracy loss and gain of each layer in each dtype, and skip sets."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from tvmopt.config import SensitivityConfig
from tvmopt.device.target import TargetSpec
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.quantize import Sensitivity, SkipSet, scheme_for
from tvmopt.quantize import sensitivity as measure
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.quantize.report import best
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.asked_metric import metric_of
from tvmopt.stages.calibrate import calibration_data, read_ranges
from tvmopt.stages.result import Progress, StageResult

SENSITIVITY_FILE = "sensitivity.json"
TABLE_FILE = "sensitivity.csv"
SKIP_SETS_FILE = "skip_sets.csv"
DTYPE_MAPS_FILE = "dtype_maps.csv"
PLOT_FILE = "sensitivity.png"


def sensitivity(
    config: SensitivityConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    calibrate_dir: Path | None = None,
) -> StageResult:
    """Measure every layer in every dtype; propose skip sets, or a dtype for each layer.

    Raises:
        ConfigError, ModelError: The model or the data cannot be used.
    """
    start = time.perf_counter()
    loaded = load_onnx(model)
    prepared = prepare(loaded, shapes_for(loaded, config.input_shapes))
    dataset = calibration_data(prepared.reference, data, config.samples)
    outputs = [value.name for value in prepared.reference.graph.output]
    metric = metric_of(config, outputs)
    target = TargetSpec.from_dict(config.target)
    found = measure(
        prepared,
        dataset,
        dtypes=config.dtypes,
        scheme=scheme_for(config.quantization, target.arch()),
        ranges=read_ranges(calibrate_dir) if calibrate_dir else None,
        target=target,
        time_limit_s=config.sensitivity_time,
        samples=config.samples,
        max_drop=config.max_accuracy_drop,
        layer_dtypes=config.layer_dtypes,
        metric=metric,
        progress=progress,
    )
    (out_dir / SENSITIVITY_FILE).write_text(json.dumps(found.to_dict(), indent=1))
    found.write_csv(out_dir / TABLE_FILE)
    if config.layer_dtypes:
        _write_table(out_dir / DTYPE_MAPS_FILE, DtypeMap, found.dtype_maps)
    else:
        _write_table(out_dir / SKIP_SETS_FILE, SkipSet, found.skip_sets)
    found.plot(out_dir / PLOT_FILE)
    metrics = {"sensitivity_s": time.perf_counter() - start, "samples": float(found.samples)}
    lines = []
    if config.layer_dtypes:
        metrics |= _map_metrics(found)
        lines.append(_map_line(found))
    for dtype in () if config.layer_dtypes else config.dtypes:
        proposed = best(found.sets(dtype))
        metrics[f"proposed_skips_{dtype}"] = float(len(proposed.layers))
        metrics |= _loss_metrics(dtype, proposed)
        listed = ",".join(map(str, proposed.layers)) or "none"
        lines.append(f"{dtype}: skip {listed}{_losses(proposed)}")
    tags = {"tvmopt.notes": "; ".join(found.notes)} if found.notes else {}
    judged = found.settings["metric"]
    tags["tvmopt.metric"] = judged
    if judged != "auto":
        lines.append(f"layers are judged by {judged}")
    return StageResult(metrics, tags, [*lines, *found.notes])


def read_proposal(folder: Path, dtype: str) -> tuple[int, ...]:
    """Read the proposed skip set for ``dtype``."""
    return read_sensitivity(folder).proposed(dtype)


def read_layer_dtypes(folder: Path) -> dict[int, str]:
    """Read the chosen dtype of each layer that leaves float32, by index."""
    return read_sensitivity(folder).chosen_map.by_layer


def read_sensitivity(folder: Path) -> Sensitivity:
    """Read the result of the sensitivity stage."""
    return Sensitivity.from_dict(json.loads((folder / SENSITIVITY_FILE).read_text()))


def _map_metrics(found: Sensitivity) -> dict[str, float]:
    """Return what was chosen and predicted, and how far the prediction of the accuracy was off."""
    chosen = found.chosen_map
    counts = {f"layers_{d}": float(chosen.dtypes.count(d)) for d in found.dtypes}
    float_s = max(m.predicted_s for m in found.dtype_maps)
    if float_s > 0:
        counts["predicted_time_ratio"] = chosen.predicted_s / float_s
    return counts | _loss_metrics("auto", chosen)


def _loss_metrics(name: str, found: SkipSet | DtypeMap) -> dict[str, float]:
    """Return the mean loss that single layers predict, the measured one, and its bound."""
    losses = {"predicted": found.predicted_loss, "mean": found.mean_loss, "bound": found.loss_bound}
    known = {kind: v for kind, v in losses.items() if v is not None and math.isfinite(v)}
    return {f"{kind}_cosine_loss_{name}": v for kind, v in known.items()}


def _map_line(found: Sensitivity) -> str:
    chosen = found.chosen_map
    layers = len({cost.index for cost in found.costs})
    counts = [f"{chosen.dtypes.count(d)} in {d}" for d in found.dtypes if d in chosen.dtypes]
    counts.append(f"{layers - len(chosen.layers)} in float32")
    return f"dtypes: of {layers} layers {', '.join(counts)}{_losses(chosen)}{_doubt(chosen)}"


def _doubt(chosen: DtypeMap) -> str:
    """Return why it is not sure that a map keeps the accuracy, as the end of a line; or nothing."""
    if chosen.is_assumed:
        return (
            f"; time ended before a map was shown to keep the accuracy: this one is chosen by its "
            f"predicted loss and {chosen.samples} samples"
        )
    if not chosen.is_undecided:
        return ""
    if chosen.samples == 0:
        return "; time ended before this map was measured: it is chosen by its predicted loss"
    enough = f"; {chosen.samples_to_decide} would" if chosen.samples_to_decide else ""
    return (
        f"; undecided: {chosen.samples} samples show a drop of {chosen.drop:.2g}, too few to "
        f"tell with 95 % confidence{enough}"
    )


def _losses(found: SkipSet | DtypeMap) -> str:
    """Return the losses as the end of a line; empty where nothing was measured."""
    if found.mean_loss is None:
        return ""
    bound = "" if found.loss_bound is None else f", at most {found.loss_bound:.2g} on others (95 %)"
    return (
        f"; mean 1 - cosine {found.mean_loss:.2g} on {found.samples} samples{bound}, "
        f"{found.predicted_loss:.2g} predicted from single layers"
    )


def _write_table(path: Path, kind: type, rows: Sequence[SkipSet] | Sequence[DtypeMap]) -> None:
    """Write dataclasses of one type as CSV; a cell of several values has spaces between them.

    Biases are left out.
    """

    def cell(value: object) -> object:
        return " ".join(map(str, value)) if isinstance(value, tuple) else value

    names = [field.name for field in dataclasses.fields(kind) if field.name != "biases"]
    with path.open("w", newline="") as file:
        write_csv(file, names, ([cell(getattr(row, name)) for name in names] for row in rows))

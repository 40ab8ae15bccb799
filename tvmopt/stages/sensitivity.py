"""Sensitivity stage: accuracy loss and gain of each layer in each dtype, and skip sets."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

from tvmopt.config import SensitivityConfig
from tvmopt.device.target import TargetSpec
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.quantize import Scheme, Sensitivity, SkipSet
from tvmopt.quantize import sensitivity as measure
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.asked_metric import metric_of
from tvmopt.stages.calibrate import calibration_data, read_ranges
from tvmopt.stages.result import Progress, StageResult

SENSITIVITY_FILE = "sensitivity.json"
TABLE_FILE = "sensitivity.csv"
SKIP_SETS_FILE = "skip_sets.csv"
PLOT_FILE = "sensitivity.png"


def sensitivity(
    config: SensitivityConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
    calibrate_dir: Path | None = None,
) -> StageResult:
    """Measure every layer in every dtype, and propose skip sets of growing size.

    Raises:
        ConfigError, ModelError: The model or the data cannot be used.
    """
    start = time.perf_counter()
    loaded = load_onnx(model)
    prepared = prepare(loaded, shapes_for(loaded, config.input_shapes))
    dataset = calibration_data(prepared.reference, data, config.samples)
    outputs = [value.name for value in prepared.reference.graph.output]
    metric = metric_of(config, outputs)
    found = measure(
        prepared,
        dataset,
        dtypes=config.dtypes,
        scheme=Scheme(config.quantization),
        ranges=read_ranges(calibrate_dir) if calibrate_dir else None,
        target=TargetSpec.from_dict(config.target),
        time_limit_s=config.sensitivity_time,
        samples=config.samples,
        max_drop=config.max_accuracy_drop,
        metric=metric,
        progress=progress,
    )
    (out_dir / SENSITIVITY_FILE).write_text(json.dumps(found.to_dict(), indent=1))
    found.write_csv(out_dir / TABLE_FILE)
    _write_skip_sets(out_dir / SKIP_SETS_FILE, found.skip_sets)
    found.plot(out_dir / PLOT_FILE)
    metrics = {"sensitivity_s": time.perf_counter() - start, "samples": float(dataset.samples)}
    lines = []
    for dtype in config.dtypes:
        proposed = found.proposed(dtype)
        metrics[f"proposed_skips_{dtype}"] = float(len(proposed))
        listed = ",".join(map(str, proposed)) or "none"
        lines.append(f"{dtype}: skip {listed}")
    tags = {"tvmopt.notes": "; ".join(found.notes)} if found.notes else {}
    judged = found.settings["metric"]
    tags["tvmopt.metric"] = judged
    if judged != "auto":
        lines.append(f"layers are judged by {judged}")
    return StageResult(metrics, tags, [*lines, *found.notes])


def read_proposal(folder: Path, dtype: str) -> tuple[int, ...]:
    """Read the proposed skip set for ``dtype``."""
    return read_sensitivity(folder).proposed(dtype)


def read_sensitivity(folder: Path) -> Sensitivity:
    """Read the result of the sensitivity stage."""
    return Sensitivity.from_dict(json.loads((folder / SENSITIVITY_FILE).read_text()))


def _write_skip_sets(path: Path, sets: Sequence[SkipSet]) -> None:
    with path.open("w", newline="") as file:
        listed = (
            dataclasses.asdict(found) | {"layers": " ".join(map(str, found.layers))}
            for found in sets
        )
        fields = [f.name for f in dataclasses.fields(SkipSet)]
        write_csv(file, fields, (row.values() for row in listed))

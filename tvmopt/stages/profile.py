"""Profile stage: time every kernel of compiled models, side by side.

The library of a version has no timestamps. The stage builds it again from the same converted module
and tuning database, with timestamps around the kernels, and checks its outputs.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.build import build_library, schedule_size
from tvmopt.config import BuildConfig, ProfileConfig
from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.latency import interleave
from tvmopt.frontend.layers import Layer
from tvmopt.profile.clock import clock_hertz
from tvmopt.profile.kernels import KernelTable
from tvmopt.profile.roofline import KernelRoofline
from tvmopt.profile.rows import ProfileRow, beside, profile_rows, write_rows
from tvmopt.profile.timers import KernelTimer, kernel_timer
from tvmopt.profile.trace import trace
from tvmopt.runtime import CompiledModel, ModelMetadata, load
from tvmopt.runtime.library import open_library
from tvmopt.runtime.model import golden_deviation, read_golden
from tvmopt.runtime.segments import register_segments
from tvmopt.scratch import scratch_folder
from tvmopt.stages.build import lowered_network
from tvmopt.stages.convert import LAYERS_FILE
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.size_folders import read_size
from tvmopt.stages.tune_files import PLAN_FILE
from tvmopt.transform.plan import read_plan

MODEL, BASELINE = "model", "baseline"
"""Labels of the profiled model and of the float32 build beside it."""
TABLE_FILE, TRACE_FILE, REPORT_FILE = "profile.csv", "trace.json", "profile.json"
BASELINE_TABLE_FILE = "profile_baseline.csv"


@dataclasses.dataclass(frozen=True)
class _Profiled:
    """A model that is timed.

    Attributes:
        timer: Times the kernels of a profiling build.
        table: Looks up the facts of its kernels.
        call: Calls the version's own library.
        roofline: Peaks of the CPU.
        threads: Threads of a call.
    """

    timer: KernelTimer
    table: KernelTable
    call: Callable[[], object]
    roofline: KernelRoofline
    threads: int


def profile(
    config: ProfileConfig,
    converts: Mapping[str, Path],
    tunes: Mapping[str, Path],
    bundles: Mapping[str, Path],
    out_dir: Path,
    progress: Progress,
) -> StageResult:
    """Time every kernel of the models, interleaved with calls of the versions' own libraries.

    Args:
        config: How many calls.
        converts: Output of the convert stage by label; ``"model"`` must be there.
        tunes: Output of the tune stage by label.
        bundles: Compiled model by label.
        out_dir: Gets ``profile.csv``, ``trace.json`` and ``profile.json``.
        progress: Called after every step.

    Raises:
        ConfigError: When a model is for a GPU, or for another machine.
        AccuracyError: When a profiling build does not reproduce the golden outputs.
        BuildError, EnvironmentSetupError: As :func:`tvmopt.build.build_library`.
    """
    start = time.perf_counter()
    hertz = clock_hertz()
    with scratch_folder() as folder:
        models = {}
        for number, (label, bundle) in enumerate(bundles.items()):
            progress(number, len(bundles) + 1, f"build {label}")
            path = folder / f"{label}.so"
            models[label] = _prepared(converts[label], tunes.get(label), bundle, path, hertz)
        progress(len(bundles), len(bundles) + 1, "time")
        seconds = _timed(config, models)
    rows = {
        label: profile_rows(one.table.facts(one.timer.names), one.timer.runs, one.roofline)
        for label, one in models.items()
    }
    if BASELINE in rows:
        rows[MODEL] = beside(rows[MODEL], rows[BASELINE])
        write_rows(out_dir / BASELINE_TABLE_FILE, rows[BASELINE])
    write_rows(out_dir / TABLE_FILE, rows[MODEL])
    shown = {label: (rows[label], one.timer.runs) for label, one in models.items()}
    traced = trace(shown, models[MODEL].threads)
    (out_dir / TRACE_FILE).write_text(json.dumps(traced))
    report = _report(models[MODEL], rows, seconds)
    (out_dir / REPORT_FILE).write_text(json.dumps(report, indent=1))
    metrics = _metrics(rows, seconds) | {"profile_s": time.perf_counter() - start}
    total, call = metrics["profile_total_us"], metrics["profile_call_us"]
    return StageResult(
        metrics,
        {},
        [f"{len(rows[MODEL])} kernels take {total:.1f} us of {call:.1f} us"],
    )


def _prepared(
    convert_dir: Path, tune_dir: Path | None, bundle: Path, path: Path, hertz: float
) -> _Profiled:
    """Build a model with timestamps, check its outputs, and return what times it."""
    metadata = ModelMetadata.read(bundle)
    target = TargetSpec.from_dict(metadata.target)
    arch = target.arch()
    if not isinstance(arch, CpuArch):
        raise ConfigError(
            f"a profiled model must be for a CPU, but it is for {metadata.device}"
            "; profile a version for a CPU"
        )
    host.request_amx(target.cpu_flags)
    network = lowered_network(
        BuildConfig(metadata.name, metadata.target), target, convert_dir, tune_dir, 0
    )
    build_library(
        network.mod, target, path, database_dir=network.database_dir, timed=True,
        native=metadata.native,
    )  # fmt: skip
    scheduled = schedule_size(network, target, target.to_tvm(), "default").after
    plan = read_plan(tune_dir / PLAN_FILE) if tune_dir else {}
    table = KernelTable(
        read_size(convert_dir, 0), network.mod, scheduled, read_layers(convert_dir), target, plan
    )
    if metadata.segments and not metadata.native:
        register_segments(metadata.threads)
    executor = open_library(str(path), threads=metadata.threads, native=metadata.native)
    inputs, expected = read_golden(bundle, metadata)
    timer = kernel_timer(executor, [executor.tensor(array) for array in inputs.values()])
    outputs = [executor.read(tensor) for tensor in timer()]
    golden_deviation(outputs, expected, metadata)
    roofline = KernelRoofline(arch, frozenset(target.cpu_flags), hertz)
    return _Profiled(timer, table, _call(load(bundle), inputs), roofline, metadata.threads)


def _call(model: CompiledModel, inputs: Mapping[str, Any]) -> Callable[[], object]:
    """Return a function that calls a model on the inputs, without copies where it can."""
    if not model.metadata.native:
        return lambda: model(inputs)
    bound = model.bind()
    for name, array in inputs.items():
        bound.inputs[name][...] = array
    return bound


def _timed(config: ProfileConfig, models: Mapping[str, _Profiled]) -> dict[str, float]:
    """Time the kernels of all models; return the median seconds of a whole call by label."""
    calls: dict[str, Callable[[], object]] = {}
    for label, one in models.items():
        one.timer.runs.clear()
        calls |= {f"kernels of {label}": one.timer, label: one.call}
    samples = interleave(calls, config.calls, config.time_limit_s)
    return {label: statistics.median(samples[label]) for label in models}


def _metrics(
    rows: Mapping[str, list[ProfileRow]], seconds: Mapping[str, float]
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for label, prefix in ((MODEL, "profile"), (BASELINE, "profile_baseline")):
        if label in rows:
            total, call = sum(row.median_us for row in rows[label]), 1e6 * seconds[label]
            metrics |= {
                f"{prefix}_total_us": total,
                f"{prefix}_call_us": call,
                f"{prefix}_coverage": total / call,
            }
    return metrics | {"profile_kernels": float(len(rows[MODEL]))}


def _report(
    model: _Profiled, rows: Mapping[str, list[ProfileRow]], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return what a reader of the profile needs: rows, times, and peaks of the machine."""
    roofline = model.roofline
    dtypes = sorted({row.dtype for row in rows[MODEL] if row.layer is not None})
    return {
        "rows": {label: list(map(dataclasses.asdict, own)) for label, own in rows.items()},
        "call_us": {label: 1e6 * value for label, value in seconds.items()},
        "rates": {dtype: roofline.rate(dtype) for dtype in dtypes},
        "machine": {
            "CPU": host.cpu_model(),
            "system": platform.machine(),
            "threads": str(model.threads),
            "clock, measured": f"{roofline.hertz / 1e9:.2f} GHz",
            "peak float32": f"{roofline.peak_flops('float32') / 1e9:.0f} GFLOP/s",
        },
    }


def read_layers(convert_dir: Path) -> list[Layer]:
    """Read the layer table of the convert stage."""
    with (convert_dir / LAYERS_FILE).open(newline="") as file:
        return [
            Layer(
                index=int(row["index"]),
                flops=int(row["flops"]) if row["flops"] else None,
                bytes=int(row["bytes"]) if row["bytes"] else None,
                skipped=row["skipped"] == "True",
                **{name: row[name] for name in _TEXTS},
            )
            for row in csv.DictReader(file)
        ]


_TEXTS = (
    "name", "op", "shape", "weight", "dtype", "input_dtype", "output_dtype", "layout", "reason",
)  # fmt: skip

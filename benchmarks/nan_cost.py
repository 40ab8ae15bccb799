"""Measure the latency cost of NaN propagation in Relu, Clip and Max on the CPU.

Usage: ``python -m benchmarks.nan_cost [--only NAMES | --model FILE.onnx --input_shapes S]
[--threads N] [--seconds S] [--processes P] [--json FILE]``

The script builds each model with the default schedules, with the pass
:mod:`tvmopt.kernels.passes.keep_nan` and without it. Where a library and its buffers lie in memory
can change its latency by 2 %, which is more than the pass costs. So several processes, one after
the other, load three libraries in rotating order: with the pass, without it, and a copy of the one
with the pass. Each process times them interleaved. The table has the geometric means over the
processes, with 95% intervals. The ratio of the two equal libraries is the noise.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from benchmarks import options, report
from benchmarks.cpu_models import ModelFile, model_files
from benchmarks.interleave import geometric_mean, interleave
from benchmarks.library import library_call
from tvmopt.measure.interleave import rotated

KEPT, DROPPED, AGAIN = "kept", "dropped", "kept again"
_ROUNDS = 60
_PROCESSES = 9  # each of the three orders three times


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Geometric mean of a ratio over the processes, with its 95% interval (Student's t of logs)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f}-{self.high:.4f})"


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Ratio of two latencies that each process measured."""
    logs = np.log(above) - np.log(below)
    half = 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs))
    mean = float(logs.mean())
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclasses.dataclass(frozen=True)
class NanCostRow:
    """Results of one model.

    Attributes:
        name: Name of the model.
        medians: Median latency in milliseconds per process, by library: ``KEPT``, ``DROPPED``,
            ``AGAIN``.
        problem: Error of the model; empty on success.
    """

    name: str
    medians: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the model ran."""
        return not self.problem

    @property
    def cost(self) -> Ratio:
        """Latency with the pass, mean of both libraries, divided by latency without it."""
        kept = np.sqrt(np.multiply(self.medians[KEPT], self.medians[AGAIN]))
        return ratio(list(kept), self.medians[DROPPED])

    @property
    def noise(self) -> Ratio:
        """Latency of the second library with the pass divided by latency of the first."""
        return ratio(self.medians[AGAIN], self.medians[KEPT])


def build(lowered: Any, target: Any, path: Path, keeps_nan: bool) -> None:
    """Compile the lowered module with or without the pass into the library ``path``."""
    from tvmopt.build import build_library
    from tvmopt.kernels.passes.keep_nan import keep_nan
    from tvmopt.transform import cpu_pipeline

    changed = keep_nan if keeps_nan else lambda module: module
    with mock.patch.object(cpu_pipeline, "keep_nan", changed):
        build_library(lowered, target, path)


def measure(file: ModelFile, threads: int, seconds: float, processes: int) -> NanCostRow:
    """Compile and time one model; an error becomes a row with a problem."""
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(file, threads, seconds, processes, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return NanCostRow(file.name, problem=report.one_line(error))


def _measure(
    file: ModelFile, threads: int, seconds: float, processes: int, scratch: Path
) -> NanCostRow:
    from tvmopt.device.target import resolve_target, set_thread_environment
    from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
    from tvmopt.transform.lower import lower

    set_thread_environment(threads)
    target = resolve_target("host", threads)
    prepared = prepare(load_onnx(file.path), parse_input_shapes(file.shapes))
    reference = Reference(prepared.reference)
    _, inputs, _ = working_random_inputs(reference, input_specs(prepared.reference), seed=0)
    module = import_onnx(prepared.model, layer_table(prepared.model))
    lowered = lower(module, target.to_tvm())
    libraries = {name: scratch / f"{name}.so" for name in (KEPT, DROPPED, AGAIN)}
    build(lowered, target, libraries[KEPT], keeps_nan=True)
    build(lowered, target, libraries[DROPPED], keeps_nan=False)
    shutil.copyfile(libraries[KEPT], libraries[AGAIN])
    arrays = [np.ascontiguousarray(array) for array in inputs.values()]
    medians: dict[str, list[float]] = {name: [] for name in libraries}
    for number in range(processes):
        ordered = {name: libraries[name] for name in rotated(list(libraries), number)}
        for name, median in _in_new_process(ordered, arrays, threads, seconds).items():
            medians[name].append(median)
    return NanCostRow(file.name, medians)


def _in_new_process(
    libraries: dict[str, Path], arrays: list[np.ndarray], threads: int, seconds: float
) -> dict[str, float]:
    """Time the libraries in a process of their own; return median milliseconds by name."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(time_libraries, libraries, arrays, threads, seconds).result()


def time_libraries(
    libraries: dict[str, Path], arrays: list[np.ndarray], threads: int, seconds: float
) -> dict[str, float]:
    """Load the libraries in the given order, time them interleaved; return median milliseconds."""
    from tvmopt.device.target import set_thread_environment

    set_thread_environment(threads)
    calls = {name: library_call(path, arrays) for name, path in libraries.items()}
    timings = interleave(calls, time_limit_s=seconds, rounds=_ROUNDS)
    return {name: timing.median for name, timing in timings.items()}


def table(rows: Sequence[NanCostRow]) -> str:
    """Return a Markdown table, one line per model."""
    header = ["model", "with the pass, ms", "without, ms", "with / without", "equal libraries"]
    return report.markdown(
        header,
        [
            [
                row.name,
                f"{np.median(row.medians[KEPT]):.4g}",
                f"{np.median(row.medians[DROPPED]):.4g}",
                str(row.cost),
                str(row.noise),
            ]
            for row in rows
            if row.right
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("nan_cost", __doc__, 6.0, "timing limit per process in seconds")
    parser.add_argument(
        "--processes", type=int, default=_PROCESSES, help="processes per model (default: 9)"
    )
    args: argparse.Namespace = options.parse(parser, arguments)
    if args.processes < 2:
        parser.error(f"--processes must be at least 2, but got {args.processes}")
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args)
    facts = report.environment(args.threads)
    report.print_environment(facts, ())
    rows = report.measure_all(
        todo,
        lambda file: measure(file, args.threads, args.seconds, args.processes),
        lambda row: f"with / without {row.cost}, equal libraries {row.noise}",
    )
    print(f"\n{table(rows)}\n")
    means = {
        "with / without": geometric_mean(row.cost.mean for row in rows if row.right),
        "equal libraries": geometric_mean(row.noise.mean for row in rows if row.right),
    }
    for name, mean in means.items():
        print(f"- {name}, geometric mean: {report.number(mean, '.4f')}")
    return report.finish(args.json, facts, rows, geometric_means=means)


if __name__ == "__main__":
    sys.exit(main())

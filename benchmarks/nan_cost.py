"""Measure the latency cost of NaN propagation in Relu, Clip and Max on the CPU.

Usage: ``python -m benchmarks.nan_cost [--only NAMES | --model FILE.onnx --input_shapes S]
[--threads N] [--seconds S] [--json FILE]``

The script builds each model with the default schedules: twice with the pass
:mod:`tvmopt.kernels.passes.keep_nan` and once without it. It times the three libraries interleaved
in one process, and prints a table of medians with 95% intervals. The ratio of the two equal
libraries is the noise.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import options, report
from benchmarks.cpu_models import ModelFile, model_files
from benchmarks.interleave import Timing, geometric_mean, interleave

KEPT, DROPPED, AGAIN = "kept", "dropped", "kept again"
_ROUNDS = 60


@dataclasses.dataclass(frozen=True)
class NanCostRow:
    """Results of one model.

    Attributes:
        name: Name of the model.
        timings: Latency by contender: ``KEPT``, ``DROPPED``, ``AGAIN``.
        problem: Error of the model; empty on success.
    """

    name: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the model ran."""
        return not self.problem

    @property
    def cost(self) -> float:
        """Latency with the pass divided by latency without it."""
        return self.timings[KEPT].median / self.timings[DROPPED].median

    @property
    def noise(self) -> float:
        """Latency of the second library with the pass divided by latency of the first."""
        return self.timings[AGAIN].median / self.timings[KEPT].median


def compiled(lowered: Any, target: Any, folder: Path, keeps_nan: bool) -> Callable[..., Any]:
    """Compile the lowered module with or without the pass; return ``main``."""
    import tvm
    from tvm import relax

    from tvmopt.build import build_library
    from tvmopt.kernels.passes.keep_nan import keep_nan
    from tvmopt.transform import cpu_pipeline

    path = Path(tempfile.mkdtemp(dir=folder)) / "library.so"
    changed = keep_nan if keeps_nan else lambda module: module
    with mock.patch.object(cpu_pipeline, "keep_nan", changed):
        build_library(lowered, target, path)
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]


def measure(file: ModelFile, threads: int, seconds: float) -> NanCostRow:
    """Compile and time one model; an error becomes a row with a problem."""
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(file, threads, seconds, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return NanCostRow(file.name, problem=report.one_line(error))


def _measure(file: ModelFile, threads: int, seconds: float, scratch: Path) -> NanCostRow:
    import tvm

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
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in inputs.values()]
    calls = {
        name: functools.partial(compiled(lowered, target, scratch, name != DROPPED), *tensors)
        for name in (KEPT, DROPPED, AGAIN)
    }
    return NanCostRow(file.name, interleave(calls, time_limit_s=seconds, rounds=_ROUNDS))


def table(rows: Sequence[NanCostRow]) -> str:
    """Return a Markdown table, one line per model."""
    header = ["model", "with the pass, ms", "without, ms", "with / without", "equal libraries"]
    return report.markdown(
        header,
        [
            [
                row.name, str(row.timings[KEPT]), str(row.timings[DROPPED]),
                f"{row.cost:.4f}", f"{row.noise:.4f}",
            ]
            for row in rows if row.right
        ],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("nan_cost", __doc__, 30.0, "timing limit per model in seconds")
    args: argparse.Namespace = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args)
    facts = report.environment(args.threads)
    report.print_environment(facts, ())
    rows = report.measure_all(
        todo,
        lambda file: measure(file, args.threads, args.seconds),
        lambda row: f"with / without {row.cost:.4f}",
    )
    print(f"\n{table(rows)}\n")
    means = {
        "with / without": geometric_mean(row.cost for row in rows if row.right),
        "equal libraries": geometric_mean(row.noise for row in rows if row.right),
    }
    for name, mean in means.items():
        print(f"- {name}, geometric mean: {report.number(mean, '.4f')}")
    return report.finish(args.json, facts, rows, geometric_means=means)


if __name__ == "__main__":
    sys.exit(main())

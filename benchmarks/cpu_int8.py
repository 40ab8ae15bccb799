"""Compare CPU latency of models in three dtypes: tvmopt, ONNX Runtime, OpenVINO and PyTorch.

Usage: ``python -m benchmarks.cpu_int8 [--only NAMES] [--threads N] [--topk K] [--model FILE.onnx
--input_shapes S] [--tune] [--slower_layers float32|convert] [--seconds S] [--json FILE]``

The script runs each model in float32, bfloat16 and int8, and prints one table: median latency with
a 95% interval, and the cosine similarity of the outputs to ONNX Runtime in float32. All runtimes
get the same QDQ model for int8. tvmopt runs its top-1 schedules; ``--tune`` adds the schedules of
the strategy ``fast``. As in the product, layers that are predicted to be slower in a narrow dtype
keep float32, and the table has their number; ``--slower_layers convert`` converts all layers.
Ratios are the latency of tvmopt divided by that of OpenVINO in the same dtype: below 1, tvmopt is
faster. The exit code is 1 when a cosine similarity of tvmopt is below its limit.
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
from benchmarks.cpu_models import Maker, ModelFile, add_peers, model_files
from benchmarks.interleave import Timing, geometric_mean, interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.low_precision import DTYPES, Model, cosine, read
from benchmarks.product_conversion import product_conversion
from benchmarks.torch_models import torch_compile_call
from benchmarks.zoo_inputs import random_inputs
from tvmopt.choices import SLOWER_LAYERS

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
# Minimum cosine similarity to the float32 outputs; int8 is calibrated on random inputs only.
_COSINE = {"float32": 0.9999, "bfloat16": 0.99, "int8": 0.7}
_PEER = {"float32": "openvino f32", "bfloat16": "openvino bf16", "int8": "openvino int8"}


@dataclasses.dataclass(frozen=True)
class DtypeRow:
    """Results of one model.

    Attributes:
        name: Name of the model.
        timings: Latency by contender: ``ours float32``, ``ours float32 tuned``, ...,
            ``onnxruntime``, ``onnxruntime int8``, ``openvino f32|bf16|int8``, ``torch bf16``.
        cosines: Cosine similarity to ONNX Runtime in float32, by contender.
        tensorized: Functions that use a tensor instruction, of all functions, by dtype.
        in_float32: Layers that keep float32 because it is faster, of all layers, by dtype.
        tuning_s: Seconds of tuning, by dtype.
        notes: Contenders that failed, with the error.
        problem: Error of the model; empty on success.
    """

    name: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    cosines: dict[str, float] = dataclasses.field(default_factory=dict)
    tensorized: dict[str, str] = dataclasses.field(default_factory=dict)
    in_float32: dict[str, str] = dataclasses.field(default_factory=dict)
    tuning_s: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether every library of tvmopt reaches the minimum cosine similarity of its dtype."""
        ours = [(name.split()[1], c) for name, c in self.cosines.items() if name[:4] == "ours"]
        return not self.problem and all(c >= _COSINE[dtype] for dtype, c in ours)

    def ours(self, dtype: str) -> Timing | None:
        """Latency of the faster tvmopt library in a dtype."""
        names = (f"ours {dtype}", f"ours {dtype} tuned")
        found = [self.timings[name] for name in names if name in self.timings]
        return min(found, key=lambda t: t.median, default=None)

    def ratio(self, dtype: str) -> float | None:
        """Latency of tvmopt divided by latency of OpenVINO in the same dtype."""
        mine, peer = self.ours(dtype), self.timings.get(_PEER[dtype])
        return mine.median / peer.median if mine and peer else None


def measure(
    file: ModelFile, threads: int, topk: int, seconds: float, slower_layers: str = SLOWER_LAYERS[0]
) -> DtypeRow:
    """Convert, compile and check one model in every dtype; time all contenders interleaved.

    Args:
        file: The model.
        threads: Threads of each contender.
        topk: Configurations of each function to tune; 0 for no tuning.
        seconds: Time limit of the timing.
        slower_layers: The parameter of the product.
    """
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(file, threads, topk, seconds, slower_layers, Path(scratch))
    except Exception as error:  # one model must not cost the others their rows
        return DtypeRow(file.name, problem=report.one_line(error))


def _measure(
    file: ModelFile, threads: int, topk: int, seconds: float, slower_layers: str, scratch: Path
) -> DtypeRow:
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend.reference import Reference

    target = resolve_target("host", threads)
    model = read_model(file, threads)
    row = DtypeRow(file.name)
    contenders: dict[str, Callable[[], Any]] = {}
    for dtype in DTYPES:
        made = product_conversion(model, dtype, target, slower_layers)
        row.in_float32[dtype] = f"{made.in_float32} of {made.layers}"
        _add_ours(row, contenders, model, made.mod, dtype, target, scratch, topk)
    for name, source in (("onnxruntime", model.reference), ("onnxruntime int8", model.quantized)):
        contenders[name] = functools.partial(Reference(source, threads), model.inputs)
    notes = _add_peers(contenders, model, threads)
    expected = arrays_of(contenders["onnxruntime"]())
    for name, call in contenders.items():
        row.cosines[name] = cosine(arrays_of(call()), expected)
    timings = interleave(contenders, time_limit_s=seconds)
    return dataclasses.replace(row, timings=timings, notes=tuple(notes))


def read_model(file: ModelFile, threads: int) -> Model:
    """Read a model and quantise a copy, calibrated on random inputs."""
    make_inputs = None if file.entry is None else functools.partial(random_inputs, file.entry)
    return read(file.path, file.shapes, threads, make_inputs)


def _add_ours(
    row: DtypeRow,
    contenders: dict[str, Callable[[], Any]],
    model: Model,
    mod: Any,
    dtype: str,
    target: Any,
    scratch: Path,
    topk: int,
) -> None:
    from tvmopt.build import build_library

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
    """Add OpenVINO and PyTorch if installed; return a note for each contender that fails."""

    def openvino(precision: str) -> peers.Call:
        quantized = precision == "int8"
        source = model.quantized if quantized else model.reference
        call = peers.openvino_model(source, threads, "bf16" if quantized else precision)
        return lambda: call(model.inputs)

    makers: list[Maker] = [
        (f"openvino {precision}", "openvino", functools.partial(openvino, precision))
        for precision in ("f32", "bf16", "int8")
    ]
    makers.append(("torch bf16", "torch", lambda: _torch_bf16(model)))
    return add_peers(contenders, makers)


def _torch_bf16(model: Model) -> Callable[[], Any] | None:
    """Compile under autocast to bfloat16; None when an operator has no PyTorch equivalent."""
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


def table(rows: Sequence[DtypeRow]) -> str:
    """Return a Markdown table, one line per model and contender."""
    header = ("model", "contender", "ms (95%)", "cosine", "in float32", "tensorised", "tuning s")
    return report.markdown(header, (cells for row in rows for cells in _cells(row)))


def _cells(row: DtypeRow) -> list[list[str]]:
    if row.problem:
        return [[row.name, f"FAILED: {row.problem[:120]}", "-", "-", "-", "-", "-"]]
    lines = []
    for name, timing in row.timings.items():
        ours = name.split()[1] if name.startswith("ours") else ""
        tuned = name.endswith("tuned")
        spent = f"{row.tuning_s[ours]:.1f}" if tuned else ""
        share = row.tensorized[ours] if ours and not tuned else ""
        kept = row.in_float32[ours] if ours and ours != "float32" else ""
        lines.append([row.name, name, str(timing), f"{row.cosines[name]:.5f}", kept, share, spent])
    return lines


def ratios(rows: Sequence[DtypeRow]) -> Mapping[str, float | None]:
    """Geometric mean of the latency ratio of tvmopt to OpenVINO, by dtype."""
    return {
        dtype: geometric_mean(
            ratio for row in rows if row.right and (ratio := row.ratio(dtype)) is not None
        )
        for dtype in DTYPES
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "cpu_int8", __doc__, 15.0, "timing limit per model in seconds"
    )
    parser.add_argument("--tune", action="store_true", help="also tune with the strategy fast")
    parser.add_argument(
        "--slower_layers", choices=SLOWER_LAYERS, default=SLOWER_LAYERS[0],
        help="dtype of layers that are predicted to be slower in the narrow one: as the product's",
    )  # fmt: skip
    args = options.parse(parser, arguments)
    topk = args.topk if args.tune else 0
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, MODELS)
    facts = report.environment(args.threads) | {"topk": topk, "slower_layers": args.slower_layers}
    report.print_environment(facts)
    rows = report.measure_all(
        todo,
        lambda file: measure(file, args.threads, topk, args.seconds, args.slower_layers),
        lambda row: ", ".join(f"{d} {report.number(row.ratio(d))}" for d in DTYPES),
    )
    print(f"\n{table(rows)}\n\nLatency ratio of tvmopt to OpenVINO in the same dtype, by model:")
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

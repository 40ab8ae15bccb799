"""Compare matmuls and convolutions in bfloat16 and int8 on the CPU: tvmopt and oneDNN.

Usage: ``python -m benchmarks.int8_kernels [--only NAMES] [--threads N] [--topk K] [--seconds S]
[--json FILE]``

The script tunes each kernel and prints one table; all weights are prepacked. The bfloat16 kernels
of tvmopt fuse relu and a cast. The int8 kernels (u8 x s8) fuse requantisation. ``u8u8`` multiplies
u8 by u8 on a CPU that has only u8 x s8: tvmopt shifts the weight by 128 to s8, and a reduction
over the data corrects the accumulator. oneDNN runs through PyTorch. The ratios are latency of
oneDNN by tvmopt in bfloat16 (above 1, tvmopt is faster), bfloat16 by int8, and u8u8 by u8s8. The
exit code is 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import options, peers, report, tuning_tasks
from benchmarks.interleave import Timing, interleave
from benchmarks.library import library_call

_OURS = ("bfloat16", "int8", "u8u8")


@dataclasses.dataclass(frozen=True)
class Case:
    """A matmul or a convolution with a constant weight.

    Attributes:
        name: Name with the shape.
        data: Shape of the data: (M, K) or (1, height, width, channels).
        weight: Shape of the weight: (K, N) or (kernel h, kernel w, channels, filters).
        stride: Stride of a convolution along both axes.
    """

    name: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1

    @property
    def padding(self) -> int:
        """SAME padding of a convolution on each side."""
        return (self.weight[0] - 1) // 2 if len(self.weight) == 4 else 0

    @property
    def flops(self) -> float:
        """FLOPs, two per multiply-add."""
        if len(self.weight) == 2:
            return 2.0 * self.data[0] * self.weight[0] * self.weight[1]
        positions = (self.data[1] // self.stride) * (self.data[2] // self.stride)
        kh, kw, channels, filters = self.weight
        return 2.0 * positions * kh * kw * channels * filters


def _matmul(n: int) -> Case:
    return Case(f"matmul {n}^3", (n, n), (n, n))


def _conv(size: int, channels: int, filters: int, kernel: int, stride: int = 1) -> Case:
    name = f"conv {size}^2 {channels}->{filters} {kernel}x{kernel}" + (f" /{stride}" * (stride > 1))
    return Case(name, (1, size, size, channels), (kernel, kernel, channels, filters), stride)


CASES = (
    _matmul(512),
    _matmul(1024),
    Case("dense 128x768->3072", (128, 768), (768, 3072)),
    Case("dense 197x384->1536", (197, 384), (384, 1536)),
    _conv(56, 64, 64, 3),
    _conv(28, 128, 128, 3),
    _conv(14, 256, 256, 3),
    _conv(7, 512, 512, 3),
    _conv(56, 64, 256, 1),
    _conv(56, 256, 64, 1),
    _conv(14, 1024, 256, 1),
    _conv(14, 96, 576, 1),
    _conv(56, 128, 128, 3, 2),
)


@dataclasses.dataclass(frozen=True)
class KernelRow:
    """Results of one matmul or convolution.

    Attributes:
        name: Name of the case.
        gflop: Billions of FLOPs.
        timings: Latency by contender: ``bfloat16``, ``int8``, ``u8u8``, ``torch:<variant>``.
        errors: Largest error of each kernel of tvmopt, in quantisation steps of the output.
        instructions: Tensor instructions of each kernel of tvmopt.
        problem: Error of the case; empty on success.
    """

    name: str
    gflop: float = 0.0
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    instructions: dict[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether integers are exact, and bfloat16 is within two units of its 8-bit significand."""
        limits = {"bfloat16": 2.0}
        return not self.problem and all(
            error <= limits.get(name, 0.0) for name, error in self.errors.items()
        )

    @property
    def onednn(self) -> Timing | None:
        """Latency of the fastest oneDNN variant."""
        variants = [t for name, t in self.timings.items() if name.startswith("torch:")]
        return min(variants, key=lambda t: t.median, default=None)

    def ratio(self, one: str, other: str) -> float | None:
        """Latency of ``one`` divided by latency of ``other``."""
        if one not in self.timings or other not in self.timings:
            return None
        return self.timings[one].median / self.timings[other].median


def measure(case: Case, threads: int, topk: int, seconds: float) -> KernelRow:
    """Tune, check and time all contenders of one case."""
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(case, threads, topk, seconds, Path(scratch))
    except Exception as error:  # one case must not cost the others their rows
        return KernelRow(case.name, problem=report.one_line(error))


def _measure(case: Case, threads: int, topk: int, seconds: float, scratch: Path) -> KernelRow:
    from tvmopt.device.target import resolve_target

    target = resolve_target("host", threads)
    row = KernelRow(case.name, case.flops / 1e9)
    contenders: dict[str, Callable[[], Any]] = {}
    for name in _OURS:
        random = np.random.default_rng(0)
        x, w, expected = _arrays(case, name, random)
        module = _module(case, name, x, w)
        call, used = _built(module, target, scratch / name, x, topk)
        row.instructions[name] = used
        row.errors[name] = _steps(call()[0], expected)
        contenders[name] = call
    if peers.available("torch"):
        contenders |= _torch(case)
    timings = interleave(contenders, time_limit_s=seconds)
    return dataclasses.replace(row, timings=timings)


def _arrays(
    case: Case, name: str, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return data, weight and expected result."""
    if name == "bfloat16":
        x = random.standard_normal(case.data).astype(ml_dtypes.bfloat16)
        w = (random.standard_normal(case.weight) / 16).astype(ml_dtypes.bfloat16)
        return x, w, np.maximum(_accumulate(case, x, w), 0).astype(ml_dtypes.bfloat16)
    x = random.integers(0, 256, case.data, dtype=np.uint8)
    if name == "int8":
        w = random.integers(-128, 128, case.weight, dtype=np.int8)
    else:
        w = random.integers(0, 256, case.weight, dtype=np.uint8)
    accumulator = _accumulate(case, x, w).astype(np.int32)
    scaled = np.rint(accumulator.astype(np.float32) * _scale(accumulator)) + 3
    return x, w, np.clip(scaled, 0, 255).astype(np.uint8)


def _scale(accumulator: np.ndarray) -> np.float32:
    return np.float32(200.0 / max(1, np.abs(accumulator).max()))


def _accumulate(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Matmul or convolution in float64, which is exact for 8-bit operands."""
    a, b = x.astype(np.float64), w.astype(np.float64)
    if a.ndim == 2:
        return a @ b
    p, s, (kh, kw) = case.padding, case.stride, w.shape[:2]
    a = np.pad(a, ((0, 0), (p, p), (p, p), (0, 0)))
    high, wide = ((a.shape[i] - k) // s + 1 for i, k in ((1, kh), (2, kw)))
    out = np.zeros((x.shape[0], high, wide, w.shape[3]))
    for y in range(kh):
        for i in range(kw):
            out += a[:, y : y + s * (high - 1) + 1 : s, i : i + s * (wide - 1) + 1 : s] @ b[y, i]
    return out


def _module(case: Case, name: str, x: np.ndarray, w: np.ndarray) -> Any:
    from tvm import relax

    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    accumulator = "float32" if name == "bfloat16" else "int32"
    with builder.function("main", [data]):
        with builder.dataflow():
            if x.ndim == 2:
                call = relax.op.matmul(data, relax.const(w, str(w.dtype)), out_dtype=accumulator)
            else:
                call = relax.op.nn.conv2d(
                    data,
                    relax.const(w, str(w.dtype)),
                    strides=case.stride,
                    padding=case.padding,
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                    out_dtype=accumulator,
                )
            result = builder.emit(call)
            if name == "bfloat16":
                result = builder.emit(relax.op.nn.relu(result))
                result = relax.op.astype(result, "bfloat16")
            else:
                scale = _scale(_accumulate(case, x, w).astype(np.int32))
                result = builder.emit(relax.op.astype(result, "float32"))
                result = builder.emit(relax.op.multiply(result, relax.const(scale)))
                result = builder.emit(relax.op.round(result))
                result = builder.emit(relax.op.add(result, relax.const(np.float32(3))))
                result = builder.emit(relax.op.clip(result, 0, 255))
                result = relax.op.astype(result, "uint8")
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get()


def _built(
    module: Any, target: Any, folder: Path, x: np.ndarray, topk: int
) -> tuple[Callable[[], Any], str]:
    """Tune and build the module; return a call and the tensor instructions that it uses."""
    from tvmopt.build import build_library
    from tvmopt.transform.lower import lower

    folder.mkdir()
    lowered = lower(module, target.to_tvm())
    tuned = tuning_tasks.tuned("fast", lowered, target, folder / "tune", topk=topk)
    path = folder / "library.so"
    built = build_library(lowered, target, path, database_dir=tuned.database_dir)
    used = sorted(set().union(*built.instructions.values()))
    return library_call(path, [x]), " ".join(used)


def _steps(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest error: absolute for integers, in units of an 8-bit significand for bfloat16."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if got.dtype == np.uint8:
        return float(np.abs(a - b).max())
    return float((np.abs(a - b) / np.maximum(np.abs(b), 1.0)).max() * 256)


def _torch(case: Case) -> dict[str, Callable[[], Any]]:
    """Variants of oneDNN in bfloat16 that PyTorch supports here: plain, prepacked weight."""
    import torch

    random = np.random.default_rng(0)
    tx, tw = (
        torch.from_numpy(random.standard_normal(shape).astype(np.float32)).bfloat16()
        for shape in (case.data, case.weight)
    )
    if tx.ndim == 2:
        rows = tw.t().contiguous()
        variants: dict[str, Callable[[], Callable[[], Any]]] = {
            "matmul": lambda: lambda: torch.matmul(tx, tw),
            "linear": lambda: lambda: torch.nn.functional.linear(tx, rows),
            "packed": lambda: _packed_linear(tx, rows),
        }
    else:
        image = tx.permute(0, 3, 1, 2)
        kernel = tw.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        settings = {"stride": case.stride, "padding": case.padding}
        variants = {
            "conv2d": lambda: lambda: torch.relu_(torch.conv2d(image, kernel, **settings)),
            "packed": lambda: _packed_convolution(image, kernel, case),
        }
    found = {}
    for name, make in variants.items():
        try:
            call = make()
            call()
        except RuntimeError:  # this build of PyTorch lacks the variant
            continue
        found[f"torch:{name}"] = call
    return found


def _packed_linear(x: Any, weight: Any) -> Callable[[], Any]:
    import torch

    packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "relu", [], "")


def _packed_convolution(x: Any, weight: Any, case: Case) -> Callable[[], Any]:
    import torch

    stride, padding, dilation = [case.stride] * 2, [case.padding] * 2, [1, 1]
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        weight, padding, stride, dilation, 1, list(x.shape)
    )
    run = torch.ops.mkldnn._convolution_pointwise
    return lambda: run(x, packed, None, padding, stride, dilation, 1, "relu", [], "")


def table(rows: Sequence[KernelRow]) -> str:
    """Return a Markdown table, one line per case."""
    header = (
        "kernel", "GFLOP", "bf16 ms (95%)", "oneDNN bf16 ms (95%)", "u8s8 ms (95%)",
        "u8u8 ms (95%)", "oneDNN / bf16", "bf16 / u8s8", "u8u8 / u8s8", "instructions",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: KernelRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem[:120]}", *["-"] * 8]
    onednn = row.onednn
    ratio = onednn.median / row.timings["bfloat16"].median if onednn else None
    return [
        row.name,
        f"{row.gflop:.2f}",
        str(row.timings["bfloat16"]),
        str(onednn or "-"),
        str(row.timings["int8"]),
        str(row.timings["u8u8"]),
        report.number(ratio),
        report.number(row.ratio("bfloat16", "int8")),
        report.number(row.ratio("u8u8", "int8")),
        " ".join(dict.fromkeys(row.instructions.values())) + ("" if row.right else " WRONG"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "int8_kernels", __doc__, 8.0, "timing limit per row in seconds"
    )
    args = options.parse(parser, arguments)
    names = options.check_names(parser, args.only, [case.name for case in CASES])
    todo = [case for case in CASES if names is None or case.name in names]
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, ("torch",))
    rows = report.measure_all(
        todo,
        lambda case: measure(case, args.threads, args.topk, args.seconds),
        lambda row: f"bf16 / u8s8 {report.number(row.ratio('bfloat16', 'int8'))}",
    )
    print(f"\n{table(rows)}")
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())

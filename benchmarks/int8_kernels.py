"""Products in bfloat16 and int8, one by one: ours beside oneDNN through PyTorch, and beside ours.

``python -m benchmarks.int8_kernels [--only NAMES] [--threads N] [--topk K] [--seconds S]
[--json FILE]`` prints one table. Each product is tuned; weights of all are packed beforehand. Ours
in bfloat16 end in relu and a cast, those in int8 (u8 x s8) in bias, relu and requantise; ``signs``
is the same product of u8 x u8 where the CPU has only u8 x s8, corrected by a sum over rows or
windows of the data. Ratios: oneDNN's time by ours in bfloat16 (above 1, ours is faster), ours in
bfloat16 by ours in int8, and the product with signs moved by the direct one. Exits with 1 when a
result is wrong.
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

_OURS = ("bfloat16", "int8", "signs")


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product or a convolution with a constant weight.

    Attributes:
        name: Says the shape.
        data: Shape of the data: (rows, depth) or (1, height, width, channels).
        weight: (depth, columns) or (kernel h, kernel w, channels, filters).
        stride: Of a convolution, along both axes.
    """

    name: str
    data: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1

    @property
    def padding(self) -> int:
        """Zeros on all sides of a convolution's data: the size stays, but for the stride."""
        return (self.weight[0] - 1) // 2 if len(self.weight) == 4 else 0

    @property
    def flops(self) -> float:
        """Arithmetic operations, a multiply-add being two."""
        if len(self.weight) == 2:
            return 2.0 * self.data[0] * self.weight[0] * self.weight[1]
        positions = (self.data[1] // self.stride) * (self.data[2] // self.stride)
        kh, kw, channels, filters = self.weight
        return 2.0 * positions * kh * kw * channels * filters


def _matmul(n: int) -> Product:
    return Product(f"matmul {n}^3", (n, n), (n, n))


def _conv(size: int, channels: int, filters: int, kernel: int, stride: int = 1) -> Product:
    name = f"conv {size}^2 {channels}->{filters} {kernel}x{kernel}" + (f" /{stride}" * (stride > 1))
    return Product(name, (1, size, size, channels), (kernel, kernel, channels, filters), stride)


PRODUCTS = (
    _matmul(512),
    _matmul(1024),
    Product("dense 128x768->3072", (128, 768), (768, 3072)),
    Product("dense 197x384->1536", (197, 384), (384, 1536)),
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
class Row:
    """One product.

    Attributes:
        name: Its name.
        gflop: Billions of arithmetic operations.
        timings: ``bfloat16``, ``int8``, ``int8 direct`` and ``signs`` are ours; ``torch:<form>``.
        errors: What ours got wrong: the largest difference in steps of the result's format.
        instructions: What each of ours multiplies with.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    gflop: float = 0.0
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    instructions: dict[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether bytes are exact, and bfloat16 within two steps of its 8 bits."""
        limits = {"bfloat16": 2.0}
        return not self.problem and all(
            error <= limits.get(name, 0.0) for name, error in self.errors.items()
        )

    @property
    def onednn(self) -> Timing | None:
        """PyTorch's best form."""
        forms = [t for name, t in self.timings.items() if name.startswith("torch:")]
        return min(forms, key=lambda t: t.median, default=None)

    def ratio(self, one: str, other: str) -> float | None:
        """Time of one contender by that of another."""
        if one not in self.timings or other not in self.timings:
            return None
        return self.timings[one].median / self.timings[other].median


def measure(product: Product, threads: int, topk: int, seconds: float) -> Row:
    """Tune, check and time all forms of one product."""
    try:
        with peers.inference_mode(), tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _measure(product, threads, topk, seconds, Path(scratch))
    except Exception as error:  # one product must not cost the others their rows
        return Row(product.name, problem=report.one_line(error))


def _measure(product: Product, threads: int, topk: int, seconds: float, scratch: Path) -> Row:
    from tvmopt.device.target import resolve_target

    target = resolve_target("host", threads)
    row = Row(product.name, product.flops / 1e9)
    contenders: dict[str, Callable[[], Any]] = {}
    for name in _OURS:
        random = np.random.default_rng(0)
        x, w, expected = _arrays(product, name, random)
        module = _module(product, name, x, w)
        call, used = _built(module, target, scratch / name, x, topk)
        row.instructions[name] = used
        row.errors[name] = _steps(call().numpy(), expected)
        contenders[name] = call
    if peers.available("torch"):
        contenders |= _torch(product)
    timings = interleave(contenders, time_limit_s=seconds)
    return dataclasses.replace(row, timings=timings)


def _arrays(
    product: Product, name: str, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Data, weight, and the result as it should be."""
    if name == "bfloat16":
        x = random.standard_normal(product.data).astype(ml_dtypes.bfloat16)
        w = (random.standard_normal(product.weight) / 16).astype(ml_dtypes.bfloat16)
        return x, w, np.maximum(_product(product, x, w), 0).astype(ml_dtypes.bfloat16)
    x = random.integers(0, 256, product.data, dtype=np.uint8)
    if name == "int8":
        w = random.integers(-128, 128, product.weight, dtype=np.int8)
    else:
        w = random.integers(0, 256, product.weight, dtype=np.uint8)
    sums = _product(product, x, w).astype(np.int32)
    scaled = np.rint(sums.astype(np.float32) * _scale(sums)) + 3
    return x, w, np.clip(scaled, 0, 255).astype(np.uint8)


def _scale(sums: np.ndarray) -> np.float32:
    return np.float32(200.0 / max(1, np.abs(sums).max()))


def _product(product: Product, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """In float64, which is exact for bytes."""
    a, b = x.astype(np.float64), w.astype(np.float64)
    if a.ndim == 2:
        return a @ b
    p, s, (kh, kw) = product.padding, product.stride, w.shape[:2]
    a = np.pad(a, ((0, 0), (p, p), (p, p), (0, 0)))
    high, wide = ((a.shape[i] - k) // s + 1 for i, k in ((1, kh), (2, kw)))
    out = np.zeros((x.shape[0], high, wide, w.shape[3]))
    for y in range(kh):
        for i in range(kw):
            out += a[:, y : y + s * (high - 1) + 1 : s, i : i + s * (wide - 1) + 1 : s] @ b[y, i]
    return out


def _module(product: Product, name: str, x: np.ndarray, w: np.ndarray) -> Any:
    from tvm import relax

    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    sums = "float32" if name == "bfloat16" else "int32"
    with builder.function("main", [data]):
        with builder.dataflow():
            if x.ndim == 2:
                call = relax.op.matmul(data, relax.const(w, str(w.dtype)), out_dtype=sums)
            else:
                call = relax.op.nn.conv2d(
                    data,
                    relax.const(w, str(w.dtype)),
                    strides=product.stride,
                    padding=product.padding,
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                    out_dtype=sums,
                )
            result = builder.emit(call)
            if name == "bfloat16":
                result = builder.emit(relax.op.nn.relu(result))
                result = relax.op.astype(result, "bfloat16")
            else:
                scale = _scale(_product(product, x, w).astype(np.int32))
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
    """A call of the tuned module, and the instructions that it uses."""
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
    """Largest difference, in steps of the format: whole numbers, or of 8 bits."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if got.dtype == np.uint8:
        return float(np.abs(a - b).max())
    return float((np.abs(a - b) / np.maximum(np.abs(b), 1.0)).max() * 256)


def _torch(product: Product) -> dict[str, Callable[[], Any]]:
    """Forms of oneDNN in bfloat16 that work: as they are, and with the weight packed."""
    import torch

    random = np.random.default_rng(0)
    tx, tw = (
        torch.from_numpy(random.standard_normal(shape).astype(np.float32)).bfloat16()
        for shape in (product.data, product.weight)
    )
    if tx.ndim == 2:
        rows = tw.t().contiguous()
        forms: dict[str, Callable[[], Callable[[], Any]]] = {
            "matmul": lambda: lambda: torch.matmul(tx, tw),
            "linear": lambda: lambda: torch.nn.functional.linear(tx, rows),
            "packed": lambda: _packed_linear(tx, rows),
        }
    else:
        image = tx.permute(0, 3, 1, 2)
        kernel = tw.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        settings = {"stride": product.stride, "padding": product.padding}
        forms = {
            "conv2d": lambda: lambda: torch.relu_(torch.conv2d(image, kernel, **settings)),
            "packed": lambda: _packed_convolution(image, kernel, product),
        }
    found = {}
    for name, make in forms.items():
        try:
            call = make()
            call()
        except RuntimeError:  # this build of PyTorch lacks the form
            continue
        found[f"torch:{name}"] = call
    return found


def _packed_linear(x: Any, weight: Any) -> Callable[[], Any]:
    import torch

    packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "relu", [], "")


def _packed_convolution(x: Any, weight: Any, product: Product) -> Callable[[], Any]:
    import torch

    stride, padding, dilation = [product.stride] * 2, [product.padding] * 2, [1, 1]
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        weight, padding, stride, dilation, 1, list(x.shape)
    )
    run = torch.ops.mkldnn._convolution_pointwise
    return lambda: run(x, packed, None, padding, stride, dilation, 1, "relu", [], "")


def table(rows: Sequence[Row]) -> str:
    """Markdown table of the rows."""
    header = (
        "product", "GFLOP", "bf16 ms (95%)", "oneDNN bf16 ms (95%)", "u8s8 ms (95%)",
        "u8u8 by sums ms (95%)", "oneDNN / bf16", "bf16 / u8s8", "by sums / direct",
        "instructions",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: Row) -> list[str]:
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
        str(row.timings["signs"]),
        report.number(ratio),
        report.number(row.ratio("bfloat16", "int8")),
        report.number(row.ratio("signs", "int8")),
        " ".join(dict.fromkeys(row.instructions.values())) + ("" if row.right else " WRONG"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser: argparse.ArgumentParser = options.make_parser(
        "int8_kernels", __doc__, 8.0, "most seconds of timing a row"
    )
    args = options.parse(parser, arguments)
    names = options.check_names(parser, args.only, [p.name for p in PRODUCTS])
    todo = [p for p in PRODUCTS if names is None or p.name in names]
    facts = report.environment(args.threads) | {"topk": args.topk}
    report.print_environment(facts, ("torch",))
    rows = report.measure_all(
        todo,
        lambda product: measure(product, args.threads, args.topk, args.seconds),
        lambda row: f"bf16 / u8s8 {report.number(row.ratio('bfloat16', 'int8'))}",
    )
    print(f"\n{table(rows)}")
    return report.finish(args.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())

"""Functions of the record besides those of models: operators by device, in every dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis
import numpy as np
from hypothesis import strategies as st
from tvm import relax, tirx

from benchmarks.cuda_rows import row

from . import access
from .access import Device, Drawn, Operand

op, nn = relax.op, relax.op.nn
_NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
_ROWS = (
    "copy-128-8192-float16", "add-1024-1024-float16", "sum-16384-1024-float16",
    "max-1023-517-float16", "softmax-128-10-float16", "softmax-4096-1000-float32",
    "matmul_nt-1024-1024-1024-float16", "matmul_nn-8192-8192-8192-float16",
    "matmul_tn-1000-1000-1000-bfloat16", "matmul_nt-4096-4096-4096-int8",
    "matmul_nn-1024-1024-1024-float32", "matmul_nt-16-4096-4096-float16",
    "matmul_nn-100-1000-16-int8", "conv2d-128-64-56-56-3-7-7-2-1-3-float16",
    "conv2d-8-64-56-56-64-1-1-2-1-3-float16", "conv2d-4-64-28-28-64-3-3-1-1-1-float32",
    "conv2d-4-32-28-28-64-3-3-1-1-1-int8", "gemv-1024-1024-float16", "gemv-8192-8192-float32",
    "gemv_i4-4096-4096-float16",
)  # fmt: skip


def _requantised(y: relax.Expr, dtype: str) -> relax.Expr:
    low, high, zero = (0, 255, 3) if dtype == "uint8" else (-128, 127, -5)
    y = op.multiply(op.astype(y, "float32"), relax.const(np.float32(0.0173)))
    return op.astype(op.clip(op.add(op.round(y), relax.const(np.float32(zero))), low, high), dtype)


def _conv(
    shape: tuple[int, ...], filters: int, kernel: int = 1, dtype: str = "float32",
    end: str = "", stride: int = 1, groups: int = 1,
) -> Drawn:  # fmt: skip
    channels, pad = shape[-1], kernel // 2
    weight_dtype = "int8" if dtype == "uint8" else dtype
    sums = {"uint8": "int32", "int8": "int32"}.get(dtype)
    settings = {"strides": stride, "padding": pad, "groups": groups, "out_dtype": sums, **_NHWC}
    extra = [Operand((filters,), True, sums or dtype)] if "bias" in end else []
    if "residual" in end:
        size = [(s + 2 * pad - kernel) // stride + 1 for s in shape[1:3]]
        extra.append(Operand((shape[0], *size, filters), False, dtype))

    def build(x: relax.Expr, w: relax.Expr, *others: relax.Expr) -> relax.Expr:
        y = nn.conv2d(x, w, **settings)
        for other in others:
            y = op.add(y, other)
        y = nn.relu(y) if "relu" in end else y
        return _requantised(y, dtype) if "bytes" in end else y

    w = Operand((kernel, kernel, channels // groups, filters), True, weight_dtype)
    return Drawn("conv", (Operand(shape, False, dtype), w, *extra), build, None)


def _matmul(
    m: int, k: int, n: int, dtype: str = "float32", end: str = "", weight: str = ""
) -> Drawn:
    sums = "int32" if "int" in dtype else None
    extra = [Operand((n,), True, sums or dtype)] if "bias" in end else []

    def build(x: relax.Expr, w: relax.Expr, *others: relax.Expr) -> relax.Expr:
        y = op.matmul(x, w, out_dtype=sums)
        for other in others:
            y = op.add(y, other)
        y = nn.gelu(y) if "gelu" in end else nn.relu(y) if "relu" in end else y
        return _requantised(y, dtype) if "bytes" in end else y

    operands = Operand((m, k), False, dtype), Operand((k, n), True, weight or dtype)
    return Drawn("matmul", (*operands, *extra), build, None)


def _of(
    build: Callable[..., relax.Expr], *shapes: tuple[int, ...], dtype: str = "float32"
) -> Drawn:
    return Drawn("", tuple(Operand(shape, False, dtype) for shape in shapes), build, None)


#: Layers of the sizes that networks have, constant operands known to be constant.
LAYERS: dict[str, Drawn] = {
    "conv3x3": _conv((1, 56, 56, 64), 64, 3, end="bias_relu"),
    "conv3x3_stride": _conv((1, 28, 28, 128), 256, 3, stride=2, end="bias_relu"),
    "conv3x3_deep": _conv((1, 7, 7, 512), 512, 3, end="bias_residual_relu"),
    "conv1x1": _conv((1, 14, 14, 256), 1024, end="bias_residual_relu"),
    "conv1x1_ragged": _conv((1, 13, 13, 67), 35),
    "conv7x7_stem": _conv((1, 224, 224, 3), 64, 7, stride=2, end="bias_relu"),
    "conv_groups": _conv((1, 28, 28, 64), 96, 3, groups=4),
    "depthwise": _conv((1, 56, 56, 144), 144, 3, groups=144, end="bias"),
    "depthwise_stride": _conv((1, 112, 112, 96), 96, 3, groups=96, stride=2, end="bias_relu"),
    "conv3x3_uint8": _conv((1, 28, 28, 128), 128, 3, "uint8", "bias_bytes"),
    "conv3x3_int8": _conv((1, 28, 28, 64), 64, 3, "int8", "bias_bytes"),
    "conv1x1_uint8": _conv((1, 14, 14, 256), 512, 1, "uint8", "bias_relu_bytes"),
    "conv1x1_uint8_int32": _conv((1, 7, 7, 96), 80, 1, "uint8"),
    "conv7x7_uint8": _conv((1, 224, 224, 3), 64, 7, "uint8", "bias_bytes", stride=2),
    "depthwise_uint8": _conv((1, 56, 56, 96), 96, 3, "uint8", "bias_bytes", groups=96),
    "conv3x3_bfloat16": _conv((1, 28, 28, 64), 64, 3, "bfloat16", "bias_relu"),
    "conv1x1_bfloat16": _conv((1, 14, 14, 256), 256, 1, "bfloat16", "bias"),
    "conv3x3_float16": _conv((8, 28, 28, 64), 128, 3, "float16", "bias_residual_relu"),
    "conv7x7_float16": _conv((2, 224, 224, 3), 64, 7, "float16", "bias_relu", stride=2),
    "matmul": _matmul(128, 768, 3072, end="bias_gelu"),
    "matmul_square": _matmul(512, 512, 512),
    "matmul_ragged": _matmul(37, 129, 67, end="bias"),
    "matmul_row": _matmul(1, 2048, 1000, end="bias"),
    "matmul_rows": _matmul(4, 768, 768),
    "matmul_uint8": _matmul(128, 768, 768, "uint8", "bias_bytes", "int8"),
    "matmul_int8": _matmul(64, 512, 512, "int8", "bias_bytes"),
    "matmul_int8_int32": _matmul(33, 70, 50, "int8"),
    "matmul_row_uint8": _matmul(1, 1024, 1000, "uint8", "bias", "int8"),
    "matmul_bfloat16": _matmul(128, 768, 768, "bfloat16", "bias_gelu"),
    "matmul_float16": _matmul(512, 1024, 1024, "float16", "bias_gelu"),
    "matmul_row_float16": _matmul(1, 4096, 4096, "float16"),
    "scores": _of(
        lambda q, k: op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])),
        (1, 12, 128, 64), (1, 12, 128, 64),
    ),
    "scores_float16": _of(
        lambda q, k: op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])),
        (8, 12, 128, 64), (8, 12, 128, 64), dtype="float16",
    ),
    "mixed_values": _of(op.matmul, (12, 128, 128), (12, 128, 64)),
    "softmax": _of(lambda x: nn.softmax(x, -1), (12, 128, 128)),
    "softmax_channels": _of(lambda x: nn.softmax(x, 1), (1, 21, 65, 65)),
    "layer_norm": _of(
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]), (128, 768), (768,), (768,)
    ),
    "layer_norm_float16": _of(
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]), (1024, 384), (384,), (384,),
        dtype="float16",
    ),
    "max_pool": _of(
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), (1, 112, 112, 64)
    ),
    "average_pool": _of(
        lambda x: nn.avg_pool2d(x, (3, 3), (1, 1), 1, layout="NHWC"), (1, 28, 28, 192)
    ),
    "global_pool": _of(lambda x: op.mean(x, [1, 2]), (1, 7, 7, 2048)),
    "mean_columns": _of(lambda x: op.mean(x, 0), (1024, 300)),
    "transposed_conv": Drawn(
        "", (Operand((1, 28, 28, 64)), Operand((4, 4, 64, 32), True)),
        lambda x, w: nn.conv2d_transpose(x, w, strides=2, padding=1, **_NHWC), None,
    ),
    "transpose": _of(lambda x: op.permute_dims(x, [0, 2, 1, 3]), (1, 128, 12, 64)),
    "transpose_matrix": _of(lambda x: op.permute_dims(x, [1, 0]), (1000, 768)),
    "transpose_float16": _of(lambda x: op.permute_dims(x, [0, 3, 1, 2]), (8, 56, 56, 64),
                             dtype="float16"),
    "hard_swish": _of(
        lambda x: op.multiply(x, op.clip(op.add(x, relax.const(3.0)), 0, 6)), (1, 56, 56, 72)
    ),
    "gelu_float16": _of(nn.gelu, (128, 3072), dtype="float16"),
    "add_residual": _of(lambda a, b: nn.relu(op.add(a, b)), (1, 56, 56, 256), (1, 56, 56, 256)),
    "upsample": _of(
        lambda x: op.image.resize2d(x, (56, 56), layout="NHWC", method="linear"), (1, 28, 28, 64)
    ),
}  # fmt: skip


def layers(to: Device, names: tuple[str, ...] = ()) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """The functions of :data:`LAYERS` as they are lowered for a device."""
    for name in names or LAYERS:
        yield from _named(name, access.lower(access.relax_function(LAYERS[name]), to))


def contract(to: Device, names: tuple[str, ...] = ()) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """The functions of the contract suite of all schedules; they are small."""
    for name in names or access.CASES:
        build, operands, *_ = access.CASES[name]
        drawn = Drawn(name, tuple(Operand(s, False, d) for s, d in operands), build, None)
        yield from _named(name, access.lower(access.relax_function(drawn), to))


def drawn(to: Device, kind: str, count: int) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """The functions of ``count`` modules of a kind of the contract suite, drawn with one seed."""
    strategy = (access.KINDS | access.NARROW)[kind]
    for number, one in enumerate(_examples(strategy, count)):
        yield from _named(str(number), access.lower(access.relax_function(one), to))


def _examples(strategy: st.SearchStrategy[Drawn], count: int) -> list[Drawn]:
    found: list[Drawn] = []

    @hypothesis.seed(28)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(one: Drawn) -> None:
        found.append(one)

    collect()
    return found


def gpu(names: tuple[str, ...] = ()) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """Functions for GPUs that come from no operator of Relax, or whose form only GPUs have."""
    for name in names or _ROWS:
        yield name, row(name).func
    if names:
        return
    for layout in ("nn", "nt", "tn", "tt"):
        yield f"float16 {layout}", access.Case(layout, 200, 136, 72, "float16").func()
    for dtype, out in (("int8", "int32"), ("uint8", "int32"), ("bfloat16", "bfloat16")):
        yield dtype, access.Case("nt", 128, 256, 128, dtype, out, bias=True).func()
    yield "batch", access.Case("nn", 64, 48, 32, "float16", batch=6).func()
    yield "float32 batch", access.Case("nt", 70, 50, 30, batch=3, bias=True).func()
    for layout in ("NHWC", "HWNC", "NCHW"):
        conv = access.Conv(layout, 2, 14, 32, 48, 3, padding=1, dtype="float16", bias=True)
        yield f"conv {layout}", conv.func()
        yield f"conv float32 {layout}", access.Conv(layout, 2, 15, 8, 24, 3, 2, 1).func()
    for rows in (1, 4, 16):
        yield f"product {rows}", access.product(rows, 256, 512)
        yield f"int4 {rows}", access.int4_product(rows, 256, 1024, 128)
    yield "int4 whole", access.int4_product(1, 512, 2048, 128, whole=True)
    for axis in (0, 1):
        yield f"sums {axis}", access.sums(axis, ((1000, 96), "float16"))
    for m in (2, 4):
        problem = access.WinogradProblem((2, 14, 14, 32), 48, m)
        for part, func in zip(("data", "product", "out"), problem.functions(), strict=True):
            yield f"winograd {m} {part}", func


def _named(name: str, found: dict[str, tirx.PrimFunc]) -> Iterator[tuple[str, tirx.PrimFunc]]:
    if len(found) == 1:
        yield name, next(iter(found.values()))
        return
    for inner, func in found.items():
        yield f"{name} {inner}", func

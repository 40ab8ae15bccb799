"""Winograd convolution: 3 x 3 convolutions with fewer multiplications.

A tile of m x m outputs needs (m + 2) x (m + 2) inputs. Each transformed input is multiplied once by
the transformed weight, instead of 9 m m multiplications: a factor 2.25 fewer for m = 2, and 4 for m
= 4. With the reduction over channels, these are (m + 2)^2 matmuls. The constant weight is
transformed during lowering. This file has the CPU version; :mod:`.winograd_gpu` has the GPU
version. Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016),
arXiv:1509.09308.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst
from tvm.target import Target

from tvmopt.kernels.cpu.intrinsics import multipliable, tiled
from tvmopt.kernels.winograd_matrices import MATRICES, WINOGRAD_ATTR
from tvmopt.kernels.winograd_transform import both_sides

# Cost in multiply-adds of loading one weight, and of the transforms per channel of one tile. Fitted
# to the best of 36 configurations of each algorithm for 14 convolutions, 7 x 7 x 512 to
# 112 x 112 x 16, on two cores with 512-bit vectors; most ratios agree within 10 %. In isolation,
# with weights in L3, one weight costs 14. In ResNet-18, with weights in memory, the 7 x 7 layers
# take 1 ms of 10 longer with Winograd than direct. In bfloat16, a dot product does twice the
# multiply-adds, on weights of half the size, and the transforms are in float32. Its larger tiles
# would add too large rounding errors.
_WEIGHT = 20.0
_TRANSFORM = {"float32": {2: 120.0, 4: 430.0}, "bfloat16": {2: 240.0}}
# Cost ratio against direct convolution from which the exact direct algorithm is kept, and cost
# ratio from which the smaller tile is kept, which has smaller weights and smaller rounding errors.
_WORTHWHILE, _NEARLY = 0.9, 0.9
# dtype of the transforms and accumulators.
_ACCUMULATOR = "float32"
# Channels of one vector; kernels also have half vectors.
_LANES = 16
#: OpPatternKind of operators with whose results elementwise operators are fused.
OUT_ELEMENTWISE_FUSABLE = 4


@dataclasses.dataclass(frozen=True)
class WinogradRule:
    """Winograd selection and rewrite for one kind of target.

    Attributes:
        sizes: Possible tile sizes by dtype of the operands.
        modelled: Returns the cost model's tile size for a convolution that has possible tile
            sizes; 0 for direct convolution.
        rewrite: Emits such a convolution with a given tile size; the marks become attributes of
            its TensorIR function.
    """

    sizes: Mapping[str, tuple[int, ...]]
    modelled: Callable[[relax.Call], int]
    rewrite: Callable[[relax.BlockBuilder, relax.Call, int, Mapping[str, int]], relax.Call]

    def sizes_of(self, call: relax.Call) -> tuple[int, ...]:
        """Return the possible tile sizes of a convolution: none where Winograd does not apply."""
        return self.sizes.get(str(call.args[0].ty.dtype), ()) if takes_winograd(call) else ()

    def tile(self, call: relax.Call) -> int:
        """Return the cost model's tile size for a convolution; 0 for direct convolution."""
        return self.modelled(call) if self.sizes_of(call) else 0


def choose_tile(
    positions: tuple[int, int, int], channels: int, outputs: int, dtype: str = "float32"
) -> int:
    """Return the best tile size of a 3 x 3 convolution with stride 1; 0 for direct convolution.

    Args:
        positions: Batch, height and width of the output.
        channels: Input channels.
        outputs: Output channels.
        dtype: dtype of the operands.
    """
    # Partially filled vectors multiply the number of instructions by this factor.
    narrow = [_LANES // math.gcd(extent, _LANES) for extent in (channels, outputs)]
    # Dot products have whole vectors only.
    if max(narrow) > 2 or (dtype != "float32" and narrow[1] > 1):
        return 0
    batch, height, width = positions
    per_position = channels * outputs
    direct = 9 * per_position * (batch * height * width + _WEIGHT)
    costs = {}
    for m, transform in _TRANSFORM[dtype].items():
        tiles = batch * math.ceil(height / m) * math.ceil(width / m)
        multiply = (m + 2) ** 2 * per_position * (tiles * narrow[1] + _WEIGHT)
        both = channels * narrow[0] + outputs * narrow[1]
        costs[m] = (multiply + tiles * both * transform) / direct
    best = 2 if costs[2] * _NEARLY <= costs.get(4, math.inf) else 4
    return best if costs[best] < _WORTHWHILE else 0


def takes_winograd(call: relax.Call) -> bool:
    """Return whether Winograd applies: 3 x 3, stride 1, NHWC, float32 result, no groups.

    The weight must be constant and of the dtype of the data, and all shapes static.
    """
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if layouts != ("NHWC", "HWIO", "NHWC") or not isinstance(call.args[1], GenericConst):
        return False
    types = [arg.ty for arg in (*call.args, call)]
    if not all(isinstance(d, tirx.IntImm) for ty in types for d in ty.shape or (None,)):
        return False
    steps = {int(s) for s in (*attrs.strides, *attrs.dilation)}
    kh, kw = (int(e) for e in list(types[1].shape)[:2])
    plain = int(attrs.groups) == 1 and steps == {1} and (kh, kw) == (3, 3)
    data, kernel, result = (str(ty.dtype) for ty in types)
    return plain and data == kernel and result == _ACCUMULATOR


def modelled_tile(call: relax.Call) -> int:
    """Return :func:`choose_tile` for a convolution that :func:`takes_winograd` accepts."""
    batch, height, width, outputs = (int(e) for e in call.ty.shape)
    channels, dtype = int(call.args[1].ty.shape[2]), str(call.args[0].ty.dtype)
    return choose_tile((batch, height, width), channels, outputs, dtype)


def winograd_weight(weight: np.ndarray, m: int) -> np.ndarray:
    """Return the transformed weight.

    Args:
        weight: (3, 3, channels, outputs).
        m: Tile size.

    Returns:
        (m + 2, m + 2, channels, outputs) in the dtype of ``weight``; computed in float64.
    """
    g = np.array(MATRICES[m].g)
    return np.einsum("ia,jb,abco->ijco", g, g, weight.astype("float64")).astype(weight.dtype)


def call_winograd(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    weight: relax.Expr,
    m: int,
    padding: tuple[int, int, int, int],
    marks: Mapping[str, int] | None = None,
) -> relax.Call:
    """Return a call of :func:`conv2d_winograd`, with which elementwise operators can be fused.

    ``marks`` become attributes of its TensorIR function.
    """
    return builder.call_te(
        conv2d_winograd,
        data,
        weight,
        m,
        padding,
        primfunc_name_hint="conv2d_winograd",
        # TVM does not detect the pattern of a reduction with an elementwise end.
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE, **(marks or {})},
    )


def as_winograd(
    builder: relax.BlockBuilder,
    conv: relax.Call,
    m: int,
    marks: Mapping[str, int] | None = None,
) -> relax.Call:
    """Return a convolution that :func:`takes_winograd` accepts as Winograd in tiles of ``m``."""
    data, weight = conv.args
    transformed = winograd_weight(weight.value.numpy(), m)
    transformed = relax.const(transformed, str(weight.ty.dtype))
    top, left, bottom, right = (int(p) for p in conv.attrs.padding)
    return call_winograd(builder, data, transformed, m, (top, left, bottom, right), marks)


def cpu_rule(target: Target) -> WinogradRule:
    """Return the Winograd rule of a CPU.

    Operands may be bfloat16 where a dot product of vectors multiplies them. A matrix unit is so
    fast that the transforms would take most of the time.
    """
    has_dots = ("bfloat16", "bfloat16") in multipliable(target) - tiled(target)
    dtypes = ("float32", "bfloat16") if has_dots else ("float32",)
    return WinogradRule({d: tuple(_TRANSFORM[d]) for d in dtypes}, modelled_tile, as_winograd)


def conv2d_winograd(
    data: te.Tensor, weight: te.Tensor, m: int, padding: tuple[int, int, int, int]
) -> te.Tensor:
    """3 x 3 convolution with stride 1 in tiles of m x m outputs.

    The transforms and the GEMM accumulate in float32; the transformed data have the dtype of the
    data.

    Args:
        data: (n, h, w, channels), float32 or bfloat16.
        weight: Result of :func:`winograd_weight`.
        m: Tile size.
        padding: Top, left, bottom, right.

    Returns:
        (n, h + top + bottom - 2, w + left + right - 2, outputs), float32.
    """
    matrices, side = MATRICES[m], m + 2
    batch, h, w, channels = (int(e) for e in data.shape)
    outputs, dtype = int(weight.shape[3]), str(data.dtype)
    top, left, bottom, right = padding
    height, width = h + top + bottom - 2, w + left + right - 2
    grid = (batch, math.ceil(height / m), math.ceil(width / m))
    after = [grid[1] * m + 2 - h - top, grid[2] * m + 2 - w - left]
    padded = topi.nn.pad(data, [0, top, left, 0], [0, *after, 0], name="pad")
    transformed = both_sides(
        matrices.bt,
        (*grid, channels),
        lambda i, j, b, y, x, c: padded[b, y * m + i, x * m + j, c].astype(_ACCUMULATOR),
        _ACCUMULATOR,
        "winograd_data",
        out_dtype=dtype,
    )
    rc = te.reduce_axis((0, channels), "rc")
    product = te.compute(
        (side, side, *grid, outputs),
        lambda i, j, b, y, x, o: te.sum(
            transformed[i, j, b, y, x, rc].astype(_ACCUMULATOR)
            * weight[i, j, rc, o].astype(_ACCUMULATOR),
            axis=[rc],
        ),
        name="winograd_product",
        attrs={WINOGRAD_ATTR: m},
    )
    out = both_sides(
        matrices.at,
        (*grid, outputs),
        lambda i, j, *at: product[(i, j, *at)],
        _ACCUMULATOR,
        "winograd_out",
    )
    return te.compute(
        (batch, height, width, outputs),
        lambda b, y, x, o: out[y % m, x % m, b, y // m, x // m, o],
        name="conv2d_winograd",
    )

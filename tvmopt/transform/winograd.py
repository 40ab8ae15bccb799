"""Winograd's minimal filtering: 3 x 3 convolutions with fewer multiplications.

A tile of m x m outputs is computed from (m + 2) x (m + 2) inputs by one multiplication of each
transformed input with the transformed weight, instead of 9 m m: 2.25 times fewer for m = 2, 4 times
for m = 4. Summed over the channels this is (m + 2)^2 matrix products. The weight, a constant, is
transformed when the model is lowered. The form here is that of CPUs, the one of GPUs is in
:mod:`.winograd_gpu`. Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(CVPR 2016), arXiv:1509.09308.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from tvmopt.kernels.cpu.winograd.schedule import WINOGRAD_ATTR
from tvmopt.kernels.winograd_matrices import MATRICES

# Multiply-adds that one weight costs on its way to the core, and that the transforms cost for one
# channel of one tile. Fitted on the best of 36 configurations of each form of 14 convolutions,
# 7 x 7 x 512 to 112 x 112 x 16, on two cores with 512-bit vectors, most ratios within 10 %; alone,
# with weights from L3, one costs 14, but in ResNet-18, with weights from memory, the layers of
# 7 x 7 take 1 ms of 10 longer in tiles than step by step.
_WEIGHT, _TRANSFORM = 20.0, {2: 120.0, 4: 430.0}
# Share of the direct convolution's cost from which on the exact form is kept, and from which on
# the smaller tile, which has smaller weights and smaller rounding errors, is kept.
_WORTHWHILE, _NEARLY = 0.9, 0.9
# Channels of one vector; half of it is a vector, too.
_LANES = 16
#: TVM's number for operators to whose results elementwise ones are fused.
OUT_ELEMENTWISE_FUSABLE = 4


@dataclasses.dataclass(frozen=True)
class WinogradRule:
    """Which convolutions become Winograd's on one kind of target, and what they become.

    Attributes:
        tile: The tile size that a model says of a convolution that :func:`takes_winograd`; 0 where
            it stays direct.
        rewrite: Such a convolution in tiles of a given size, emitted by a block builder; marks are
            written on its TensorIR.
    """

    tile: Callable[[relax.Call], int]
    rewrite: Callable[[relax.BlockBuilder, relax.Call, int, Mapping[str, int]], relax.Call]


def choose_tile(positions: tuple[int, int, int], channels: int, outputs: int) -> int:
    """The tile size that a 3 x 3 convolution of stride 1 should have; 0 keeps it direct.

    Args:
        positions: Batch, height and width of the result.
        channels: Of the data.
        outputs: Channels of the result.
    """
    # Half-empty vectors: that many times the instructions.
    narrow = [_LANES // math.gcd(extent, _LANES) for extent in (channels, outputs)]
    if max(narrow) > 2:
        return 0
    batch, height, width = positions
    products = channels * outputs
    direct = 9 * products * (batch * height * width + _WEIGHT)
    costs = {}
    for m, transform in _TRANSFORM.items():
        tiles = batch * math.ceil(height / m) * math.ceil(width / m)
        multiply = (m + 2) ** 2 * products * (tiles * narrow[1] + _WEIGHT)
        both = channels * narrow[0] + outputs * narrow[1]
        costs[m] = (multiply + tiles * both * transform) / direct
    best = 2 if costs[2] * _NEARLY <= costs[4] else 4
    return best if costs[best] < _WORTHWHILE else 0


def takes_winograd(call: relax.Call) -> bool:
    """Whether a convolution can be computed in tiles: 3 x 3, stride 1, NHWC, float32, no groups.

    Its weight must be known, and its shapes.
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
    return plain and {str(ty.dtype) for ty in types} == {"float32"}


def modelled_tile(call: relax.Call) -> int:
    """:func:`choose_tile` of a convolution that :func:`takes_winograd`."""
    batch, height, width, outputs = (int(e) for e in call.ty.shape)
    return choose_tile((batch, height, width), int(call.args[1].ty.shape[2]), outputs)


def winograd_weight(weight: np.ndarray, m: int) -> np.ndarray:
    """The transformed weight.

    Args:
        weight: (3, 3, channels, outputs).
        m: Tile size.

    Returns:
        (m + 2, m + 2, channels, outputs), of the type of ``weight``; computed in float64.
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
    """A call of :func:`conv2d_winograd`, to which what follows elementwise can be fused.

    ``marks`` are written on its TensorIR.
    """
    return builder.call_te(
        conv2d_winograd,
        data,
        weight,
        m,
        padding,
        primfunc_name_hint="conv2d_winograd",
        # A sum with an elementwise end, which TVM does not see by itself.
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE, **(marks or {})},
    )


def as_winograd(
    builder: relax.BlockBuilder,
    conv: relax.Call,
    m: int,
    marks: Mapping[str, int] | None = None,
) -> relax.Call:
    """A convolution that :func:`takes_winograd` in tiles of ``m``; ``marks`` as above."""
    data, weight = conv.args
    transformed = relax.const(winograd_weight(weight.value.numpy(), m))
    top, left, bottom, right = (int(p) for p in conv.attrs.padding)
    return call_winograd(builder, data, transformed, m, (top, left, bottom, right), marks)


#: The rule of CPUs.
CPU_RULE = WinogradRule(modelled_tile, as_winograd)


def conv2d_winograd(
    data: te.Tensor, weight: te.Tensor, m: int, padding: tuple[int, int, int, int]
) -> te.Tensor:
    """A 3 x 3 convolution of stride 1 in tiles of m x m outputs.

    Args:
        data: (n, h, w, channels).
        weight: Of :func:`winograd_weight`.
        m: Tile size.
        padding: Top, left, bottom, right.

    Returns:
        (n, h + top + bottom - 2, w + left + right - 2, outputs).
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
        lambda i, j, b, y, x, c: padded[b, y * m + i, x * m + j, c],
        dtype,
        "winograd_data",
    )
    rc = te.reduce_axis((0, channels), "rc")
    product = te.compute(
        (side, side, *grid, outputs),
        lambda i, j, b, y, x, o: te.sum(
            transformed[i, j, b, y, x, rc] * weight[i, j, rc, o], axis=[rc]
        ),
        name="winograd_product",
        attrs={WINOGRAD_ATTR: m},
    )
    out = both_sides(
        matrices.at,
        (*grid, outputs),
        lambda i, j, *at: product[(i, j, *at)],
        dtype,
        "winograd_out",
    )
    return te.compute(
        (batch, height, width, outputs),
        lambda b, y, x, o: out[y % m, x % m, b, y // m, x // m, o],
        name="conv2d_winograd",
    )


def both_sides(
    matrix: Sequence[Sequence[float]],
    shape: Sequence[int],
    value: Callable[..., Any],
    dtype: str,
    name: str,
    attrs: Mapping[str, int] | None = None,
) -> te.Tensor:
    """``matrix @ tile @ matrix.T`` of every tile, its columns first.

    Args:
        matrix: (a, b).
        shape: Extents of what tells tiles apart.
        value: Element i, j of a tile of (b, b): ``value(i, j, *tile)``.
        dtype: Type of the elements.
        name: Of the result; the stage before it has ``_rows`` behind.
        attrs: Marks on the result's stage.

    Returns:
        (a, a, *shape).
    """
    size, side = len(matrix), len(matrix[0])
    rows = te.compute(
        (size, side, *shape),
        lambda i, j, *at: _row(matrix, i, lambda k: value(k, j, *at), dtype),
        name=f"{name}_rows",
    )
    return te.compute(
        (size, size, *shape),
        lambda i, j, *at: _row(matrix, j, lambda k: rows[(i, k, *at)], dtype),
        name=name,
        attrs=dict(attrs or {}),
    )


def _row(
    matrix: Sequence[Sequence[float]], row: Any, value: Callable[[int], Any], dtype: str
) -> tirx.Expr:
    """Row ``row`` of the product of ``matrix`` with values; zeros and ones cost nothing.

    ``row`` is made of loops' variables: once they are unrolled, one of the sums is left.
    """
    sums = [_sum(coefficients, value, dtype) for coefficients in matrix]
    result = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        result = tirx.Select(row == index, sums[index], result)
    return result


def _sum(coefficients: Sequence[float], value: Callable[[int], Any], dtype: str) -> tirx.Expr:
    def term(k: int) -> Any:
        size = abs(coefficients[k])
        return value(k) if size == 1 else value(k) * tirx.const(float(size), dtype)

    # A positive term first, which every row has, so that nothing is subtracted from zero.
    used = sorted((k for k, c in enumerate(coefficients) if c), key=lambda k: coefficients[k] < 0)
    total = term(used[0])
    for k in used[1:]:
        total = total + term(k) if coefficients[k] > 0 else total - term(k)
    return total

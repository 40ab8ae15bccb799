"""Winograd convolution on a GPU: three kernels with intermediate results in memory.

before -> after::

    y = relu(conv2d(x, w) + bias)

    v = winograd_data(x)                (points, tiles, channels): bt d bt.T of every tile d
    p = winograd_product(v, u)          (points, tiles, outputs): a batched GEMM
    y = relu(winograd_out(p) + bias)    at p at.T, with the elementwise epilogue

Points are the (m + 2)^2 elements of a transformed tile, tiles count over all images, and ``u`` is
the transformed constant weight. The CPU version is one function (:mod:`.winograd`), because a
core's cache holds the intermediate results; the shared memory of a thread block is too small for
them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from tvm import ir, relax, te, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.winograd.schedule import WINOGRAD_DATA, WINOGRAD_OUT
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.transform.winograd import (
    OUT_ELEMENTWISE_FUSABLE,
    WinogradRule,
    both_sides,
    winograd_weight,
)
from tvmopt.transform.winograd_gpu_model import choose_gpu_tile, grid_of

# OpPatternKind of operators that are not fused.
_OPAQUE = 8


def gpu_rule(arch: CudaArch) -> WinogradRule:
    """Return the Winograd rule of ``arch``."""
    return WinogradRule(functools.partial(modelled_gpu_tile, arch=arch), as_gpu_winograd)


def modelled_gpu_tile(conv: relax.Call, arch: CudaArch) -> int:
    """Return the best tile size of a convolution that supports Winograd; 0 for direct."""
    batch, height, width, outputs = (int(e) for e in conv.ty.shape)
    image = math.prod(int(e) for e in conv.args[0].ty.shape)
    channels = int(conv.args[1].ty.shape[2])
    return choose_gpu_tile((batch, height, width), channels, outputs, image, arch)


def as_gpu_winograd(
    builder: relax.BlockBuilder,
    conv: relax.Call,
    m: int,
    marks: Mapping[str, int] | None = None,
) -> relax.Call:
    """Emit a convolution that :func:`~tvmopt.transform.winograd.takes_winograd` as three kernels.

    Args:
        builder: Block builder to emit into.
        conv: The convolution.
        m: Tile size.
        marks: Attributes of the TensorIR of the output transform.

    Returns:
        The call of the output transform; the other two kernels are emitted.
    """
    data, weight = conv.args
    top, left, bottom, right = (int(p) for p in conv.attrs.padding)
    transformed = winograd_weight(weight.value.numpy(), m)
    transformed = transformed.reshape((m + 2) ** 2, *transformed.shape[2:])
    opaque = {"op_pattern": _OPAQUE}
    tiles = builder.emit_te(
        winograd_data,
        data,
        m,
        (top, left, bottom, right),
        primfunc_name_hint="winograd_data",
        primfunc_attrs=opaque,
    )
    gemm_output = builder.emit_te(
        winograd_product,
        tiles,
        relax.const(transformed),
        primfunc_name_hint="winograd_product",
        primfunc_attrs=opaque,
    )
    return builder.call_te(
        winograd_out,
        gemm_output,
        m,
        tuple(int(e) for e in list(conv.ty.shape)[:3]),
        primfunc_name_hint="winograd_out",
        # TVM does not detect the pattern of a reduction with an elementwise end.
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE, **(marks or {})},
    )


def winograd_data(data: te.Tensor, m: int, padding: tuple[int, int, int, int]) -> te.Tensor:
    """Input transform of overlapping (m + 2) x (m + 2) tiles.

    Args:
        data: (n, h, w, channels).
        m: Tile size.
        padding: Top, left, bottom, right; zeros, also where the last tiles exceed the data.

    Returns:
        ((m + 2)^2, tiles, channels), tiles in the order image, y, x.
    """
    matrices, side = MATRICES[m], m + 2
    batch, h, w, channels = (int(e) for e in data.shape)
    top, left, bottom, right = padding
    grid = grid_of((batch, h + top + bottom - 2, w + left + right - 2), m)
    _, tiles_y, tiles_x = grid
    dtype = str(data.dtype)

    def element(b: tirx.Var, y: tirx.Var, x: tirx.Var, c: tirx.Var) -> ir.Expr:
        inside: list[ir.Expr] = []
        for at, before, extent, tiles in ((y, top, h, tiles_y), (x, left, w, tiles_x)):
            if before:
                inside.append(at >= before)
            if tiles * m + 2 > before + extent:
                inside.append(at < before + extent)
        value = data[b, y - top, x - left, c]
        if not inside:
            return value
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype))

    padded = te.compute(
        (batch, tiles_y * m + 2, tiles_x * m + 2, channels), element, name="winograd_padded"
    )
    transformed = both_sides(
        matrices.bt,
        (*grid, channels),
        lambda i, j, b, y, x, c: padded[b, y * m + i, x * m + j, c],
        dtype,
        "winograd_data",
        {WINOGRAD_DATA: m},
    )

    def flat(p: tirx.Var, t: tirx.Var, c: tirx.Var) -> ir.Expr:
        image, y, x = t // (tiles_y * tiles_x), t // tiles_x % tiles_y, t % tiles_x
        return transformed[p // side, p % side, image, y, x, c]

    return te.compute((side * side, math.prod(grid), channels), flat, name="winograd_tiles")


def winograd_product(tiles: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Batched GEMM over the points.

    Args:
        tiles: (points, tiles, channels), from :func:`winograd_data`.
        weight: (points, channels, outputs).

    Returns:
        (points, tiles, outputs).
    """
    channel = te.reduce_axis((0, tiles.shape[2]), "channel")
    return te.compute(
        (*tiles.shape[:2], weight.shape[2]),
        lambda p, t, o: te.sum(tiles[p, t, channel] * weight[p, channel, o], axis=[channel]),
        name="winograd_product",
    )


def winograd_out(gemm_output: te.Tensor, m: int, positions: tuple[int, int, int]) -> te.Tensor:
    """Output transform of every tile, cropped at the edges.

    Args:
        gemm_output: (points, tiles, outputs), from :func:`winograd_product`.
        m: Tile size.
        positions: Batch, height and width of the output.

    Returns:
        (images, height, width, outputs).
    """
    matrices, side = MATRICES[m], m + 2
    grid = grid_of(positions, m)
    _, tiles_y, tiles_x = grid
    outputs, dtype = int(gemm_output.shape[2]), str(gemm_output.dtype)

    def product(k: int, j: Any, b: Any, y: Any, x: Any, o: Any) -> ir.Expr:
        return gemm_output[k * side + j, (b * tiles_y + y) * tiles_x + x, o]

    tiles = both_sides(
        matrices.at, (*grid, outputs), product, dtype, "winograd_out", {WINOGRAD_OUT: m}
    )
    return te.compute(
        (*positions, outputs),
        lambda b, y, x, o: tiles[y % m, x % m, b, y // m, x // m, o],
        name="conv2d_winograd",
    )

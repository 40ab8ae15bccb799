"""Stages of a Winograd convolution on a GPU, in tensor expressions: transforms and batched GEMM.

Points are the (m + 2)^2 elements of a transformed tile; tiles count over all images.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, te, tirx

from tvmopt.kernels.cuda.winograd.schedule import WINOGRAD_DATA, WINOGRAD_OUT
from tvmopt.kernels.cuda.winograd.sizes import grid_of
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.kernels.winograd_transform import both_sides


def winograd_weight(weight: te.Tensor, m: int) -> te.Tensor:
    """Weight transform.

    Args:
        weight: (3, 3, channels, outputs).
        m: Tile size.

    Returns:
        ((m + 2)^2, channels, outputs).
    """
    side, shape = m + 2, [int(e) for e in weight.shape[2:]]
    transformed = both_sides(
        MATRICES[m].g,
        shape,
        lambda i, j, c, o: weight[i, j, c, o],
        str(weight.dtype),
        "winograd_weight",
    )
    return te.compute(
        (side * side, *shape),
        lambda p, c, o: transformed[p // side, p % side, c, o],
        name="winograd_points",
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

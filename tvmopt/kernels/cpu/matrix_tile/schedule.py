"""GEMM and convolution with AMX: a block of accumulator tiles in tile registers.

Contractions and outer loops are as in :mod:`.register_tile`. In the micro-kernel, tensor intrinsics
zero the accumulator tiles, multiply into them and store them. The epilogue reads the accumulators
from a scratch buffer of a few KB.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.nest import (
    misfit,
    parallelize_outer,
    place_producers,
    schedule_rest,
    unit_loops,
    unroll_and_vectorize,
)
from tvmopt.kernels.cpu.common.weight_copy import copy_weight, dimension_axes, schedule_packing
from tvmopt.kernels.cpu.intrinsics import TileIntrinsic
from tvmopt.kernels.cpu.intrinsics.tile import COLUMNS, MOST_ROWS
from tvmopt.kernels.cpu.matrix_tile.config import MatrixTileConfig
from tvmopt.kernels.cpu.matrix_tile.flat_rows import match_flat_rows
from tvmopt.kernels.cpu.matrix_tile.whole_blocks import can_overlap, with_whole_blocks
from tvmopt.kernels.workload import Refusal

# Shortest vector of the epilogue.
_SHORTEST = 8


def emit(func: tirx.PrimFunc, hint: MatrixTileConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after, for a block of 2 x 2 tiles of 16 rows and 64 bytes of K::

        for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
        for m, n: Y[m, n] = requantize(acc[m, n])

        for no, mo in T.parallel(...):
            zero(tiles)
            for k: multiply(tiles, A[mo * 32, k * 64], P[no * 2, k * 16, 0, 0])
            store(tiles, S)
            for mi in T.unroll(32): for v in T.vectorized(32): Y[...] = requantize(S[mi, v])
    """
    form = match_flat_rows(func)
    if isinstance(form, Refusal):
        return form
    refusal = misfit(hint, form.extents)
    if refusal is not None:
        return refusal
    tile = shaped(form, hint)
    if isinstance(tile, Refusal):
        return tile
    facts = form.facts
    sizes = dict(zip(facts.spatial, hint.register_tile, strict=True))
    *rows, columns = facts.spatial
    sch, anchor, epilogue = with_whole_blocks(form, {i: sizes[i] for i in rows})
    copy = copy_weight(sch, anchor, form.weight, sizes[columns])
    tile = _pack(sch, anchor, copy, form.contiguous, tile, hint)
    sch.set_scope(anchor, 0, "global")
    stored = sch.cache_write(anchor, 0, "local")
    facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    outer, inner = [], []
    for i, size in zip(facts.spatial, hint.register_tile, strict=True):
        around, within = sch.split(loops[i], [None, size])
        outer.append(around)
        inner.append(within)
    reduction = [loops[i] for i in facts.reduction]
    last = facts.reduction.index(form.contiguous)
    reduction[last], k_tile = sch.split(reduction[last], [None, tile.tap_k])
    taps = []
    if tile.taps:
        across = facts.reduction.index(form.taps_axis)
        reduction[across], within_step = sch.split(reduction[across], [None, tile.taps])
        taps = [within_step]
    units = unit_loops(facts, loops)
    around = [*units, *(outer[position] for position in hint.loop_order)]
    single = [loop for loop, size in zip(inner, hint.register_tile, strict=True) if size == 1]
    tiled = [loop for loop, size in zip(inner, hint.register_tile, strict=True) if size > 1]
    sch.reorder(*around, *single, *reduction, *tiled, *taps, k_tile)
    depth = len(around)
    sch.reverse_compute_at(stored, around[-1], preserve_unit_loops=True)
    sch.reverse_compute_at(epilogue, around[-1], preserve_unit_loops=True)
    finish = sch.get_loops(epilogue)[depth:]
    vector = _whole_vectors(form.extents[-1], hint.register_tile[-1])
    unroll_and_vectorize(sch, sch.split(finish[-1], [None, vector]))
    place_producers(sch, anchor, around, len(units), hint)
    parallelize_outer(sch, around, len(units), hint)
    block = sch.blockize(tiled[0])
    init = sch.decompose_reduction(block, reduction[0])
    sch.tensorize(init, tile.zero)
    sch.tensorize(block, tile.multiply)
    sch.tensorize(sch.get_loops(stored)[-len(tiled)], tile.store)
    schedule_rest(sch, hint)
    return sch


def shaped(form: ContractionForm, hint: MatrixTileConfig) -> TileIntrinsic | Refusal:
    """Return the tile intrinsic for the register tile of ``hint``."""
    found = form.tile(hint.arch)
    if found is None or found.name != hint.intrinsic or hint.packing == "none":
        return Refusal(f"{hint.intrinsic} does not suit the operands, or their packing")
    *sizes, width = hint.register_tile
    rows = [i for i, size in zip(form.facts.spatial, sizes, strict=False) if size > 1]
    if len(rows) > 2 or width % COLUMNS or width // COLUMNS > 2:
        return Refusal(f"a register tile of {hint.register_tile} is not made of AMX tiles")
    partial = any(e % b for e, b in zip(form.extents[:-1], sizes, strict=True))
    if partial and not can_overlap(form):
        return Refusal(f"another stage reads the result, and {sizes} do not divide its rows")
    if any(form.weight.strides[i] != 0 for i in rows):
        return Refusal("the weight differs between rows of the tile (batched GEMM)")
    found = dataclasses.replace(found, column_blocks=width // COLUMNS)
    channels = form.facts.axes[form.contiguous].extent
    if not rows:
        return dataclasses.replace(found, rows=1, row_blocks=1)
    count = hint.register_tile[form.facts.spatial.index(rows[-1])]
    step = _distance(form, rows[-1], channels)
    if step is None:
        return Refusal("rows of the data are not at multiples of its channels")
    width_of_data = int(form.data.buffer.shape[-2]) * channels
    if step * channels >= width_of_data > channels:
        return Refusal("rows of the tile lie on more than two image lines")
    if len(rows) == 1:
        blocks = math.ceil(count / MOST_ROWS)
        if blocks > 2 or count % blocks:
            return Refusal(f"{count} rows are not one or two AMX tiles")
        return dataclasses.replace(found, rows=count // blocks, row_blocks=blocks, step=step)
    lines = hint.register_tile[form.facts.spatial.index(rows[0])]
    line_step = _distance(form, rows[0], width_of_data)
    if lines != 2 or count > MOST_ROWS or not line_step:
        return Refusal(f"{lines} lines of {count} rows are not two AMX tiles")
    return dataclasses.replace(found, rows=count, row_blocks=2, step=step, line_step=line_step)


def _whole_vectors(columns: int, width: int) -> int:
    """Return the vector length of the epilogue for tiles of ``width`` of ``columns`` columns.

    A bounds check within a vector would make it scalar. So the vectors of partial tiles are shorter
    such that each lies inside or outside: 16 for 240 columns in tiles of 32, 8 for 24 in 16.
    """
    common = math.gcd(columns, width)
    return common if common >= _SHORTEST else width


def _distance(form: ContractionForm, axis: int, unit: int) -> int | None:
    """Return the data stride of ``axis`` in multiples of ``unit``; None if it does not divide."""
    stride = form.data.strides[axis]
    return stride // unit if stride and stride % unit == 0 else None


def _pack(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    copy: SBlockRV,
    contiguous: int,
    tile: TileIntrinsic,
    hint: MatrixTileConfig,
) -> TileIntrinsic:
    """Pack the weight into tiles: ``P[n // 16, ky, kx, c // 4, n % 16, c % 4]``, batch axes first.

    Returns:
        The intrinsic for a packed weight with this number of kernel axes (``ky``, ``kx``).
    """
    facts = block_facts(sch, anchor)
    axis_of = dimension_axes(sch, anchor, copy)
    column = next(d for d, i in axis_of.items() if i == facts.spatial[-1])
    inner = next(d for d, i in axis_of.items() if i == contiguous)
    shape = sch.get(copy).writes[0].source.shape
    rank = len(shape)
    batch = [
        d
        for d in range(rank)
        if d != column and int(shape[d]) > 1 and not facts.axes[axis_of[d]].reduce
    ]
    kernel = [d for d in range(rank) if d not in (column, inner, *batch)]
    depth = tile.depth

    def tiles(*at: tirx.Var) -> list[tirx.Expr]:
        n, k = at[column], at[inner]
        outer = [*(at[d] for d in batch), n // COLUMNS, *(at[d] for d in kernel), k // depth]
        return [*outer, n % COLUMNS, k % depth]

    index_map = tirx.IndexMap.from_func(tiles, ndim=rank)
    sch.transform_layout(copy, ("write", 0), index_map)
    sch.transform_block_layout(copy, index_map)
    schedule_packing(sch, copy, hint, hint.packing)
    return dataclasses.replace(tile, weight_axes=len(kernel))

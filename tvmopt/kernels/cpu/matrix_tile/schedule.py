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
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, prepare
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.nest import (
    PREPROC,
    fits,
    place_producers,
    run_in_parallel,
    schedule_rest,
    unit_loops,
    unroll_and_vectorize,
)
from tvmopt.kernels.cpu.common.weight_copy import copy_weight, dimension_axes
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.intrinsics import TileIntrinsic

_COLUMNS = 16
_MOST_ROWS = 16


NAME = "matrix_tile"


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
    """Schedule ``func`` with the configuration ``hint``; None when the template does not fit.

    Before -> after, for a block of 2 x 2 tiles of 16 rows and 64 bytes of K::

        for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
        for m, n: Y[m, n] = requantize(acc[m, n])

        for no, mo in T.parallel(...):
            zero(tiles)
            for k: multiply(tiles, A[mo * 32, k * 64], P[no * 2, k * 16, 0, 0])
            store(tiles, S)
            for mi in T.unroll(32): for v in T.vectorized(32): Y[...] = requantize(S[mi, v])
    """
    form = prepare_matrix(func)
    if form is None or not fits(hint, form.extents) or any(hint.task):
        return None
    tile = shaped(form, hint)
    if tile is None:
        return None
    sch, anchor, epilogue = form.sch, form.anchor, form.epilogue
    facts = form.facts
    multiples = [1] * len(facts.axes)
    for i, size in zip(facts.spatial, hint.block, strict=True):
        multiples[i] = size
    copy = copy_weight(sch, anchor, form.weight, multiples)
    tile = _pack(sch, anchor, copy, form.contiguous, tile, hint)
    sch.set_scope(anchor, 0, "global")
    stored = sch.cache_write(anchor, 0, "local")
    facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    outer, inner = [], []
    for i, size in zip(facts.spatial, hint.block, strict=True):
        around, within = sch.split(loops[i], [None, size])
        outer.append(around)
        inner.append(within)
    reduction = [loops[i] for i in facts.reduction]
    last = facts.reduction.index(form.contiguous)
    reduction[last], products = sch.split(reduction[last], [None, tile.block_k])
    units = unit_loops(facts, loops)
    around = [*units, *(outer[position] for position in hint.order)]
    single = [loop for loop, size in zip(inner, hint.block, strict=True) if size == 1]
    tiled = [loop for loop, size in zip(inner, hint.block, strict=True) if size > 1]
    sch.reorder(*around, *single, *reduction, *tiled, products)
    depth = len(around)
    sch.reverse_compute_at(stored, around[-1], preserve_unit_loops=True)
    sch.reverse_compute_at(epilogue, around[-1], preserve_unit_loops=True)
    finish = sch.get_loops(epilogue)[depth:]
    unroll_and_vectorize(sch, finish[-1:])
    place_producers(sch, anchor, around, len(units), hint)
    run_in_parallel(sch, around[: len(units) + hint.parallel] if hint.parallel else [])
    block = sch.blockize(tiled[0])
    init = sch.decompose_reduction(block, reduction[0])
    sch.tensorize(init, tile.zero)
    sch.tensorize(block, tile.multiply)
    sch.tensorize(sch.get_loops(stored)[-len(tiled)], tile.store)
    schedule_rest(sch, hint)
    return sch


def prepare_matrix(func: tirx.PrimFunc) -> ContractionForm | None:
    """Normalise ``func``; y and x stay separate axes, as a block's rows lie on one or two lines."""
    return prepare(func, collapse=False)


def shaped(form: ContractionForm, hint: CpuHint) -> TileIntrinsic | None:
    """Return the tile intrinsic for the block shape of ``hint``; None when there is none."""
    found = form.tile(hint.arch)
    if found is None or found.name != hint.intrin or hint.pack == "none":
        return None
    *sizes, width = hint.block
    rows = [i for i, size in zip(form.facts.spatial, sizes, strict=False) if size > 1]
    if len(rows) > 2 or width % _COLUMNS or width // _COLUMNS > 2:
        return None
    if any(form.weight.strides[i] != 0 for i in rows):
        return None  # batched GEMM: the weight has a batch axis, too
    found = dataclasses.replace(found, column_blocks=width // _COLUMNS)
    channels = form.facts.axes[form.contiguous].extent
    if not rows:
        return dataclasses.replace(found, rows=1, row_blocks=1)
    count = hint.block[form.facts.spatial.index(rows[-1])]
    step = _distance(form, rows[-1], channels)
    if step is None:
        return None
    if len(rows) == 1:
        blocks = math.ceil(count / _MOST_ROWS)
        if blocks > 2 or count % blocks:
            return None
        return dataclasses.replace(found, rows=count // blocks, row_blocks=blocks, step=step)
    lines = hint.block[form.facts.spatial.index(rows[0])]
    width_of_data = int(form.data.buffer.shape[-2]) * channels
    line_step = _distance(form, rows[0], width_of_data)
    if lines != 2 or count > _MOST_ROWS or not line_step:
        return None
    return dataclasses.replace(found, rows=count, row_blocks=2, step=step, line_step=line_step)


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
    hint: CpuHint,
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
        outer = [*(at[d] for d in batch), n // _COLUMNS, *(at[d] for d in kernel), k // depth]
        return [*outer, n % _COLUMNS, k % depth]

    index_map = tirx.IndexMap.from_func(tiles, ndim=rank)
    sch.transform_layout(copy, ("write", 0), index_map)
    sch.transform_block_layout(copy, index_map)
    if hint.pack == "constant":
        sch.annotate(copy, PREPROC, True)
    else:
        schedule_injective(sch, copy, hint)
    return dataclasses.replace(tile, weight_axes=len(kernel))

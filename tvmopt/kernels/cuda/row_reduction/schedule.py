"""Row reduction (sum, softmax, layer norm): threads share a contiguous row."""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cuda.common.loops import extent, fuse_all, split_prefix, split_vector, unrolled
from tvmopt.kernels.cuda.common.vectors import cache_reads, cache_result, load_at, store_at
from tvmopt.kernels.cuda.row_reduction.config import CudaRowReductionConfig, RowCache
from tvmopt.kernels.cuda.row_reduction.form import prepare_rows
from tvmopt.kernels.cuda.row_reduction.row_cache import (
    bind_divided,
    cache_in_registers,
    cache_in_shared,
    is_ragged,
    load_registers,
    load_shared,
)
from tvmopt.kernels.workload import Refusal

NAME = "gpu_row_reduction"


def emit(func: tirx.PrimFunc, config: CudaRowReductionConfig) -> s_tir.Schedule | Refusal:
    """Schedule the row reduction ``func``.

    Before -> after, for a softmax with 32 threads a row, 4 rows a block, vectors of 8::

        for i: for k: m[i] = max(m[i], X[i, k])
        for i: for k: s[i] += exp(X[i, k] - m[i])
        for i, k: Y[i, k] = exp(X[i, k] - m[i]) / s[i]

        for b in blockIdx.x, y in threadIdx.y, x in threadIdx.x:
            for ko: X_local[0:8] = X[...];  for v: m = max(m, X_local[v])
            allreduce over x;  ...
    """
    form = prepare_rows(func)
    if isinstance(form, Refusal):
        return form
    sch = form.sch
    vector = math.gcd(form.vector, config.vector_elements)
    last = sch.get_sblock(form.last)
    others = [sch.get_sblock(n) for n in form.reductions]
    in_shared = in_registers = None
    if form.wide and config.row_cache == RowCache.SHARED:
        in_shared = cache_in_shared(sch, form, config)
    elif form.wide and config.row_cache == RowCache.REGISTERS:
        in_registers = cache_in_registers(sch, form, config, vector)
        if isinstance(in_registers, Refusal):
            return in_registers
    loads = {
        sch.get(b).name_hint: cache_reads(sch, b, len(sch.get(b).iter_vars) - 1, vector)
        for b in [*others, *([last] if form.wide else [])]
    }
    result = cache_result(sch, last, vector) if form.wide and vector > 1 else None
    divided = split_prefix(sch, sch.get_loops(last), form.rows)
    if divided is None:
        return Refusal("the axes of its output do not divide into rows")
    rows, columns = divided
    rows = rows or [sch.add_unit_loop(columns[0] if columns else last)]
    # With a single row, no index tells further threads apart: they would store it too.
    together = config.threads if form.rows > 1 else 1
    if together <= extent(sch, rows[-1]):
        inner, place = sch.split(rows[-1], [None, together])
        grid = fuse_all(sch, [*rows[:-1], inner])
    else:
        grid, place = sch.split(fuse_all(sch, rows), [None, together])
    sch.bind(grid, "blockIdx.x")
    sch.bind(place, "threadIdx.y")
    divides = in_registers is not None and not is_ragged(form, config, vector)
    parts = 3 if vector > 1 else 2
    work = [(last, columns[-parts:] if divides else columns)] if form.wide else []
    for block in reversed(others):
        for n in range(len(sch.get(block).writes)):
            sch.set_scope(block, n, "local")
        sch.compute_at(block, place, preserve_unit_loops=True)
        # TVM makes a unit reduction axis spatial, so count the parts instead.
        count = parts if divides else len(block_facts(sch, block).reduction)
        inside = sch.get_loops(block)[2:]
        if math.prod(extent(sch, loop) for loop in inside[:-count]) > 1:
            return Refusal("a thread would reduce several rows")
        work.append((block, inside[-count:]))
    for block, inside in work:
        if divides:
            at = bind_divided(sch, inside)
        else:
            bound = _bind_columns(sch, block, inside, config, vector, form.crosses)
            if isinstance(bound, Refusal):
                return bound
            at = bound
        load_at(sch, loads[sch.get(block).name_hint], at)
        if result is not None and sch.get(block).name_hint == form.last:
            store_at(sch, result, at)
    if in_shared is not None:
        load_shared(sch, in_shared, grid, config, vector)
    if in_registers is not None:
        load_registers(sch, in_registers, place)
    return sch


def _bind_columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    loops: list[LoopRV],
    config: CudaRowReductionConfig,
    vector: int,
    crosses: bool,
) -> LoopRV | Refusal:
    """Distribute the elements of a row to threads, ``vector`` at a time.

    If a row is only part of an axis, threads past its end would be in the next row: TVM checks the
    bounds of buffers, not of rows. The loop over that part then stays whole.

    Returns:
        The loop around a vector.
    """
    around = loops[:1] if crosses and len(loops) > 1 else []
    pieces, lane = split_vector(sch, loops[len(around) :], vector)
    if crosses and not around and extent(sch, pieces) % config.reduce_threads:
        return Refusal("threads past the end of a row would be in the next one")
    if extent(sch, pieces) == 1 < config.reduce_threads:  # a constant index: no bounds check
        return Refusal("a row of one vector has work for one thread")
    step, thread = sch.split(pieces, [None, config.reduce_threads])
    sch.reorder(thread, *around, step, lane)
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.unroll(lane)
    # Registers have no address: the step must be a constant.
    every = extent(sch, step) if config.row_cache == RowCache.REGISTERS else 1
    return unrolled(sch, step, max(every, config.unroll))

"""Schedule of a convolution with few output channels.

Before -> after, for 3 filters, a 3 x 3 window and float16 (vectors of 8 channels)::

    for n, y, x, f: for r, s, c: Y[n, y, x, f] += X[n, y + r, x + s, c] * W[r, s, c, f]

    for nyx in blockIdx.x, t in threadIdx.x:      # accumulators of two pixels and all filters
        W_shared = W
        for r, c / 8:
            load 2 + 2 vectors of 8 channels of X, and W[r, :, 8 channels, :]
            for s, c % 8, pixel, f: y[pixel, f] += x[pixel + s, c] * w[s, c, f]
        Y[...] = y
"""

from __future__ import annotations

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.cuda.common.gemm_inlining import inline_consumers, inline_producers
from tvmopt.kernels.cuda.common.loops import fuse_all, init_before, split_threads
from tvmopt.kernels.cuda.few_filters.config import FewFiltersConfig
from tvmopt.kernels.cuda.few_filters.form import FewFiltersForm, few_filters_form
from tvmopt.kernels.workload import Refusal


def emit_few_filters(func: tirx.PrimFunc, config: FewFiltersConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, a convolution with few output channels and an elementwise epilogue."""
    form = few_filters_form(func)
    if isinstance(form, Refusal):
        return form
    if form.extent(2) % config.pixels:
        return Refusal(f"rows of {form.extent(2)} pixels are no multiple of {config.pixels}")
    sch = s_tir.Schedule(IRModule({"main": func}))
    block = sch.get_sblock(form.facts.name)
    end, image, weight = _copies(sch, block, form)
    loops = sch.get_loops(block)
    n, y, x, f = loops[:4]
    x, pixel = sch.split(x, [None, config.pixels])
    c, lane = sch.split(loops[form.channel], [None, form.vector])
    *rows, column = [loops[i] for i in form.window] or (None,)
    grid, thread = split_threads(sch, fuse_all(sch, [n, y, x]), config.threads)
    inner = [loop for loop in (column, lane, pixel, f) if loop is not None]
    sch.reorder(grid, thread, *rows, c, *inner)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(end, thread, preserve_unit_loops=True)
    sch.compute_at(image, c, preserve_unit_loops=True)
    _load_vectors(sch, image, len(sch.get_loops(block)) - len(inner))
    _share_weight(sch, block, weight, grid, c, config.threads, form)
    for loop in inner:
        sch.unroll(loop)
    for loop in sch.get_loops(end)[2:]:
        sch.unroll(loop)
    init_before(sch, block, rows[0] if rows else c)
    return sch


def _copies(
    sch: s_tir.Schedule, block: SBlockRV, form: FewFiltersForm
) -> tuple[SBlockRV, SBlockRV, int]:
    """Return the epilogue block, the block that loads the image, and the weight's read index."""
    image = None
    if form.producer is not None:
        image = sch.get_sblock(form.producer)
        inline_producers(sch, image)
        sch.set_scope(image, 0, "local")
    for producer in sch.get_producers(block):
        if image is None or not sch.get(producer).same_as(sch.get(image)):
            inline_producers(sch, producer)
            sch.compute_inline(producer)
    if image is None:
        image = sch.cache_read(block, form.image, "local")
    end = sch.cache_write(block, 0, "local")
    inline_consumers(sch, end)
    return end, image, 1 - form.image


def _load_vectors(sch: s_tir.Schedule, block: SBlockRV, place: int) -> None:
    """Load each pixel of the copy ``block`` by one vector; its own loops begin at ``place``."""
    *pixels, lane = sch.get_loops(block)[place:]
    for loop in pixels:
        sch.unroll(loop)
    sch.vectorize(lane)


def _share_weight(
    sch: s_tir.Schedule, block: SBlockRV, index: int, grid: LoopRV, step: LoopRV, threads: int,
    form: FewFiltersForm,
) -> None:  # fmt: skip
    """Copy the weight to shared memory, and what each ``step`` needs of it to registers."""
    shared = sch.cache_read(block, index, "shared")
    local = sch.cache_read(block, index, "local")
    sch.compute_at(local, step, preserve_unit_loops=True)
    sch.compute_at(shared, grid, preserve_unit_loops=True)
    _, lane = sch.split(fuse_all(sch, sch.get_loops(shared)[1:]), [None, threads])
    sch.bind(lane, "threadIdx.x")
    place = _depth(sch, block, step) + 1
    loops = sch.get_loops(local)[place:]
    strides = form.facts.reads[index].strides
    run, lanes = loops[-1], form.vector
    if strides[3] == 1 and strides[form.channel] == form.filters:  # channels x filters: one run
        run = fuse_all(sch, loops[-2:])
    elif strides[form.channel] != 1:
        lanes = 1
    _, lane = sch.split(run, [None, lanes])
    for loop in sch.get_loops(local)[place:-1]:
        sch.unroll(loop)
    sch.vectorize(lane)


def _depth(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> int:
    """Return the number of loops around ``loop`` above ``block``."""
    return next(
        n for n, one in enumerate(sch.get_loops(block)) if sch.get(one).same_as(sch.get(loop))
    )

"""Rasterisation order of thread blocks, and software pipelines of copies, fragments and math."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.cuda.toolchain.one_barrier import DOUBLE_BUFFERED


def bind_blocks(
    sch: s_tir.Schedule, batch: list[LoopRV], rows: LoopRV, columns: LoopRV, raster: int
) -> LoopRV:
    """Bind the tiles to ``blockIdx.x`` in raster groups of ``raster`` rows."""
    extent = int(sch.get(rows).extent)
    panel = max(d for d in range(1, max(1, raster) + 1) if extent % d == 0)
    outer, inner = sch.split(rows, [None, panel])
    sch.reorder(outer, columns, inner)
    block = sch.fuse(*batch, outer, columns, inner)
    sch.bind(block, "blockIdx.x")
    return block


def pipeline(
    sch: s_tir.Schedule,
    loop: LoopRV,
    copies: list[SBlockRV],
    stages: int,
    is_async: bool,
    double_buffered: bool = False,
) -> None:
    """Annotate a software pipeline: copies of a stage run ahead of the math.

    Args:
        sch: The schedule.
        loop: The loop over K blocks; in it the copies, then the math.
        copies: Copies into shared memory.
        stages: Pipeline stages, at least 2; exactly 2 when not ``is_async``.
        is_async: Copy with cp.async. Otherwise through registers: the next K block is loaded into
            registers before the math, and stored to shared memory after it.
        double_buffered: Through registers with double-buffered shared memory: an iteration stores
            the next K block to the other buffer, loads the one after it, then does the math. It
            needs one barrier an iteration instead of two, but more registers.
    """
    count = len(copies)
    if is_async:
        stage, order = [*[0] * count, stages - 1], list(range(count + 1))
        sch.annotate(loop, "software_pipeline_async_stages", [0])
    else:
        for copy in copies:
            sch.annotate(copy, "tirx.manifest_shared_memory_local_stage", 1)
        stage, order = [], []
        for n in range(count):
            stage += [0, 1] if double_buffered else [0, 0]
            order += [count + n, n] if double_buffered else [n, count + 1 + n]
        stage.append(2 if double_buffered else 1)
        order.append(2 * count if double_buffered else count)
        if double_buffered:
            sch.annotate(loop, DOUBLE_BUFFERED, 1)
    sch.annotate(loop, "software_pipeline_stage", stage)
    sch.annotate(loop, "software_pipeline_order", order)


def pipeline_fragments(sch: s_tir.Schedule, steps: LoopRV, inner: LoopRV, stages: int) -> None:
    """Annotate a two-level pipeline: cp.async ahead of fragment loads, these ahead of the math.

    Args:
        sch: The schedule.
        steps: The loop over K blocks; in it two copies into shared memory, then ``inner``.
        inner: The loop over one K block, to be unrolled; in it two fragment loads, then the math.
        stages: Pipeline stages, at least 3.
    """
    sch.annotate(inner, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(inner, "software_pipeline_order", [0, 1, 2])
    # The inner pipeline has three statements: first loads, all but the last math, last math.
    # An iteration's first loads come before the last math of the previous iteration.
    last = stages - 1
    sch.annotate(steps, "software_pipeline_async_stages", [0])
    sch.annotate(steps, "software_pipeline_stage", [0, 0, last - 1, last, last])
    sch.annotate(steps, "software_pipeline_order", [0, 1, 3, 2, 4])

"""In which order thread blocks run, and the copies and products of a step."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.cuda.toolchain.one_barrier import HALVES


def bind_blocks(
    sch: s_tir.Schedule, batch: list[LoopRV], rows: LoopRV, columns: LoopRV, raster: int
) -> LoopRV:
    """Number the tiles along ``blockIdx.x``, ``raster`` rows of them side by side."""
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
    halves: bool = False,
) -> None:
    """Let the copies of a step run ahead of its products.

    Args:
        sch: The schedule.
        loop: The loop over steps; under it the copies, then the products.
        copies: Into shared memory.
        stages: Steps in flight, at least 2; exactly 2 when not ``is_async``.
        is_async: By cp.async; else through registers, into which the next step is loaded before
            the products and from which it is stored after them.
        halves: Through registers: a step stores what is to be multiplied next to the other half of
            shared memory, loads what comes after that, then multiplies. Threads meet once a step
            rather than twice, but need more registers.
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
            stage += [0, 1] if halves else [0, 0]
            order += [count + n, n] if halves else [n, count + 1 + n]
        stage.append(2 if halves else 1)
        order.append(2 * count if halves else count)
        if halves:
            sch.annotate(loop, HALVES, 1)
    sch.annotate(loop, "software_pipeline_stage", stage)
    sch.annotate(loop, "software_pipeline_order", order)


def pipeline_fragments(sch: s_tir.Schedule, steps: LoopRV, inner: LoopRV, stages: int) -> None:
    """Let copies by cp.async run ahead of fragments, and fragments of products.

    Args:
        sch: The schedule.
        steps: The loop over steps; under it two copies into shared memory, then ``inner``.
        inner: The loop over a step's depth, to be unrolled; under it two loads, then products.
        stages: Steps in flight, at least 3.
    """
    sch.annotate(inner, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(inner, "software_pipeline_order", [0, 1, 2])
    # The inner pipeline is three statements: the first loads, all but the last products, the
    # last products. The first loads of a step come before the last products of the one before.
    last = stages - 1
    sch.annotate(steps, "software_pipeline_async_stages", [0])
    sch.annotate(steps, "software_pipeline_stage", [0, 0, last - 1, last, last])
    sch.annotate(steps, "software_pipeline_order", [0, 1, 3, 2, 4])

"""Weight packing: copy a weight to a buffer with one dimension per axis, zero-padded to tiles."""

from __future__ import annotations

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, block_facts
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.nest import PREPROC
from tvmopt.kernels.cpu.hint import CpuHint


def copy_weight(
    sch: s_tir.Schedule, anchor: SBlockRV, weight: Access, multiple: int = 1
) -> SBlockRV:
    """Copy the weight to a buffer with one dimension per axis; zero-pad the vectorised one.

    Args:
        sch: The schedule.
        anchor: The contraction.
        weight: The operand to pack.
        multiple: What to pad the extent of the vectorised axis of ``anchor`` to.

    Returns:
        The packing block.
    """
    copy = sch.reindex(anchor, ("read", _read_index(sch, anchor, weight)))
    facts = block_facts(sch, anchor)
    vector = facts.spatial[-1]
    if facts.axes[vector].extent % multiple == 0:
        return copy
    written = sch.get(copy).writes[0].source
    data = next(r for r in facts.reads if not r.buffer.same_as(written))
    view = sch.reindex(anchor, ("read", _read_index(sch, anchor, data)))
    sch.pad_einsum(anchor, [multiple if i == vector else 1 for i in range(len(facts.axes))])
    (crop,) = sch.get_consumers(anchor)
    sch.compute_inline(view)
    sch.compute_inline(crop)
    (padded,) = sch.get_consumers(copy)
    sch.compute_inline(copy)
    return padded


def schedule_packing(sch: s_tir.Schedule, copy: SBlockRV, hint: CpuHint, packing: str) -> None:
    """Let the block ``copy`` run once at load time, or schedule it as a part of each call.

    Args:
        sch: The schedule.
        copy: The packing block, whose layout is final.
        hint: The configuration.
        packing: ``"prepacked"``, or when the call packs.
    """
    if packing == "prepacked":
        sch.annotate(copy, PREPROC, True)
    else:
        schedule_injective(sch, copy, hint)


def dimension_axes(sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV) -> dict[int, int]:
    """Map each dimension of the buffer from :func:`copy_weight` to its axis of ``anchor``."""
    facts = block_facts(sch, anchor)
    buffer = sch.get(copy).writes[0].source
    read = next(r for r in facts.reads if r.buffer.same_as(buffer))
    shape = [int(e) for e in buffer.shape]
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    axis_of: dict[int, int] = {}
    for d, (extent, step) in enumerate(zip(shape, steps, strict=True)):
        for i, axis in enumerate(facts.axes):
            if (
                i not in axis_of.values()
                and axis.extent == extent
                and read.strides[i] == (step if extent > 1 else 0)
            ):
                axis_of[d] = i
                break
    return axis_of


def _read_index(sch: s_tir.Schedule, anchor: SBlockRV, access: Access) -> int:
    buffers = [region.source for region in sch.get(anchor).reads]
    return next(n for n, buffer in enumerate(buffers) if buffer.same_as(access.buffer))

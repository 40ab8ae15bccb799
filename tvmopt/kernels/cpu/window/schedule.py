"""Sums and maxima over a window, channel by channel: depthwise convolution, pooling.

Channels lie innermost and fill the lanes, so nothing has to be broadcast. A tile of neighbouring
outputs shares the inputs that its windows have in common: the window is written out as
straight-line code, and the compiler loads each input once. Whether a tap lies in the padding is the
same for all lanes, so that reading around it costs less than a padded copy of the data.
"""

from __future__ import annotations

import dataclasses

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import BlockFacts, block_facts
from tvmopt.kernels.cpu.common.nest import (
    find_epilogue,
    fits,
    only_reduction,
    schedule_nest,
    schedule_rest,
    unit_loops,
)
from tvmopt.kernels.cpu.common.stage import inline_read_once
from tvmopt.kernels.cpu.hint import INLINED, CpuHint

# Multiply-adds of one vector that a tile may hold as straight-line code.
MOST_UNROLLED = 256


@dataclasses.dataclass(frozen=True)
class WindowForm:
    """A function made ready for tiling.

    Attributes:
        sch: Its schedule, everything inlined that can be.
        anchor: The reduction.
        epilogue: The block that finishes the anchor's elements.
        facts: Of the anchor; its last data-parallel axis is the vectorised one.
        producers: Names of the blocks that make the data, padding mostly.
        inlines: Whether all that they do is to choose between a value read and a constant.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    epilogue: SBlockRV
    facts: BlockFacts
    producers: tuple[str, ...]
    inlines: bool

    @property
    def extents(self) -> list[int]:
        """Of the data-parallel axes."""
        return [self.facts.axes[i].extent for i in self.facts.spatial]

    @property
    def narrow(self) -> bool:
        """Whether some of what is read takes less than 32 bits."""
        return any(read.buffer.dtype.itemsize < 4 for read in self.facts.reads)

    @property
    def unrolled_taps(self) -> int:
        """Steps of the reduction when it becomes straight-line code; 0 when it stays a loop."""
        return self.facts.reduced if self.facts.reduced <= MOST_UNROLLED // 4 else 0

    def vector(self, width: int, arch: CpuArch, *, around: bool) -> int:
        """Lanes of the vectors that ``width`` channels are computed in: a register, or part of one.

        A half or a quarter where only that divides and LLVM would take the vector apart: one of
        narrow numbers, lane by lane, and one that goes from step to step of a loop, or past the
        branches ``around`` the padding, in pieces.
        """
        lanes = arch.lanes(self.facts.dtype)
        whole = self.narrow or around or not self.unrolled_taps
        parts = (lanes, lanes // 2, lanes // 4) if whole else ()
        return next((part for part in parts if part > 2 and width % part == 0), lanes)


def prepare_window(func: tirx.PrimFunc) -> WindowForm | None:
    """``func`` made ready, or None when it is not one reduction within channels."""
    found = only_reduction(func)
    if found is None:
        return None
    sch, anchor = found
    inline_read_once(sch, anchor)
    facts = block_facts(sch, anchor)
    if not facts.spatial or not facts.reads or any(facts.conditional) or facts.divides:
        return None
    vector = facts.spatial[-1]
    if facts.axes[vector].extent < 4 or facts.write.strides[vector] != 1:
        return None
    steps = [read.strides[vector] for read in facts.reads]
    if any(step not in (0, 1) for step in steps) or steps.count(1) != len(steps):
        return None
    epilogue = find_epilogue(sch, anchor)
    blocks = [sch.get(b) for b in sch.get_producers(anchor)]
    producers = tuple(block.name_hint for block in blocks)
    inlines = bool(blocks) and all(_only_pads(block) for block in blocks)
    return WindowForm(sch, anchor, epilogue, block_facts(sch, anchor), producers, inlines)


def _only_pads(block: s_tir.SBlock) -> bool:
    """Whether a block writes either what it reads or a constant."""
    value = getattr(block.body, "value", None)
    if not isinstance(value, ir.Call) or not value.op.name.endswith(".if_then_else"):
        return False
    plain = (ir.TensorLoad, tirx.FloatImm, tirx.IntImm)
    return all(isinstance(branch, plain) for branch in value.args[1:])


NAME = "window"


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
    """Schedule ``func`` as ``hint`` says; None when the template does not fit.

    Before -> after, for a 3 x 3 depthwise convolution, tiles of 4 outputs of 32 channels::

        for y, x, c: for ky, kx: acc[y, x, c] += X[y + ky, x + kx, c] * W[ky, kx, c]
        for y, x, c: Y[y, x, c] = relu(acc[y, x, c])

        for y, xo in T.parallel(...): for co:
            for ky in T.unroll(3): for kx in T.unroll(3):
                for xi in T.unroll(4): for c in T.unroll(2): for v in T.vectorized(16): ...
            for xi in T.unroll(4): for v in T.vectorized(32): Y[...] = ...
    """
    form = prepare_window(func)
    inlined = hint.stage == INLINED
    placed = dataclasses.replace(hint, stage=0) if inlined else hint
    if form is None or hint.task or not fits(placed, form.extents):
        return None
    if inlined and not form.inlines:
        return None
    sch, anchor, facts = form.sch, form.anchor, form.facts
    for name in form.producers if inlined else ():
        sch.compute_inline(sch.get_sblock(name))
    lanes = form.vector(hint.block[-1], hint.arch, around=inlined)
    loops = sch.get_loops(anchor)
    split = [
        sch.split(loops[i], [None, size]) for i, size in zip(facts.spatial, hint.block, strict=True)
    ]
    vectors = [split[-1][1]]
    if hint.block[-1] % lanes == 0:
        vectors = list(sch.split(vectors[0], [None, lanes]))
    schedule_nest(
        sch,
        anchor,
        form.epilogue,
        placed,
        units=unit_loops(facts, loops),
        outer=[outer for outer, _ in split],
        reduction=[loops[i] for i in facts.reduction],
        rows=[inner for _, inner in split[:-1]],
        vectors=vectors,
        unroll_reduction=form.unrolled_taps > 0,
    )
    schedule_rest(sch, hint)
    return sch

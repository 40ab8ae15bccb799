"""Depthwise convolution and pooling in NHWC: reductions over a window of each channel.

Channels are innermost and fill the vector lanes, so nothing is broadcast. A register tile of
neighbouring outputs shares the inputs of its overlapping windows: the window is fully unrolled, and
LLVM loads each input once. The padding condition is uniform over the lanes, so that inlining it
costs less than a padded copy of the data. Clamped indices of max pooling cost less still, because
they need no branch (see :mod:`tvmopt.transform.wide_pools`).
"""

from __future__ import annotations

import dataclasses

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS
from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cpu.common.nest import (
    NestLoops,
    TiledForm,
    find_epilogue,
    misfit,
    reduction_read_once,
    schedule_nest,
    schedule_rest,
    unit_loops,
)
from tvmopt.kernels.cpu.window.config import WindowConfig
from tvmopt.kernels.workload import Refusal

# Maximum vector FMAs of an unrolled tile.
MOST_UNROLLED = 256


@dataclasses.dataclass(frozen=True)
class WindowForm(TiledForm):
    """A depthwise convolution or pooling, normalised for tiling; channels are vectorised.

    Attributes:
        inlines: Whether all producers only pad, so that they can be inlined.
    """

    inlines: bool

    @property
    def narrow(self) -> bool:
        """Whether an operand has elements of less than 32 bits."""
        return any(read.buffer.dtype.itemsize < 4 for read in self.facts.reads)

    @property
    def widens(self) -> bool:
        """Whether an operand is a 16-bit float, of which every vector is widened to float32."""
        return self.facts.dtype == "float32" and any(
            str(read.buffer.dtype) in HALF_FLOATS for read in self.facts.reads
        )

    @property
    def multiplies_bytes(self) -> bool:
        """Whether 8-bit operands are multiplied."""
        dtypes = [str(read.buffer.dtype) for read in self.facts.reads]
        return len(dtypes) == 2 and all(dtype in BYTE_INTEGERS for dtype in dtypes)

    @property
    def unrolled_taps(self) -> int:
        """Taps of the window if the reduction is unrolled; 0 if it stays a loop."""
        return self.facts.reduced if self.facts.reduced <= MOST_UNROLLED // 4 else 0

    def vector(self, width: int, arch: CpuArch, *, around: bool) -> int:
        """Return the vector length for a tile of ``width`` channels: a register, a half, a quarter.

        A part of a register is used if only it divides ``width`` and LLVM would scalarise a vector
        of another length: for narrow dtypes, loop-carried vectors and inlined padding.

        Args:
            width: Channels of the tile.
            arch: The CPU.
            around: Whether the padding is inlined (branches in the tile).
        """
        lanes = arch.lanes(self.facts.dtype)
        whole = self.narrow or around or not self.unrolled_taps
        parts = (lanes, lanes // 2, lanes // 4) if whole else ()
        return next((part for part in parts if part > 2 and width % part == 0), lanes)


def match_window(func: tirx.PrimFunc) -> WindowForm | Refusal:
    """Normalise ``func`` as a single reduction within each channel."""
    found = reduction_read_once(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor, facts = found
    if not facts.spatial or not facts.reads or any(facts.conditional) or facts.divides:
        return Refusal("its reduction has a condition, a division of integers or no operand")
    vector = facts.spatial[-1]
    if facts.axes[vector].extent < 4 or facts.write.strides[vector] != 1:
        return Refusal("its last output axis is no contiguous vector")
    steps = [read.strides[vector] for read in facts.reads]
    if any(step not in (0, 1) for step in steps) or steps.count(1) != len(steps):
        return Refusal("an operand is not contiguous along the channels")
    epilogue = find_epilogue(sch, anchor)
    facts = block_facts(sch, anchor)  # before clamps make its indices other than linear
    _inline_clamped(sch, anchor)
    blocks = [sch.get(b) for b in sch.get_producers(anchor)]
    producers = tuple(block.name_hint for block in blocks)
    inlines = bool(blocks) and all(_only_pads(block) for block in blocks)
    return WindowForm(sch, anchor, epilogue, facts, producers, inlines)


def _inline_clamped(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Inline the producers that read the element at a clamped index: no branch, no copy.

    The channels must not be clamped: they are read as vectors.
    """
    for producer in sch.get_producers(anchor):
        block, facts = sch.get(producer), block_facts(sch, producer)
        reads = isinstance(block.body.value, ir.TensorLoad) and len(facts.reads) == 1
        if reads and facts.reads[0].strides[-1] == 1 and None in facts.reads[0].strides:
            sch.compute_inline(producer)


def _only_pads(block: s_tir.SBlock) -> bool:
    """Return whether a block writes either the element that it reads or a constant."""
    value = getattr(block.body, "value", None)
    if not isinstance(value, ir.Call) or not value.op.name.endswith(".if_then_else"):
        return False
    plain = (ir.TensorLoad, tirx.FloatImm, tirx.IntImm)
    return all(isinstance(branch, plain) for branch in value.args[1:])


def emit(func: tirx.PrimFunc, hint: WindowConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after, for a 3 x 3 depthwise convolution, tiles of 4 outputs of 32 channels::

        for y, x, c: for ky, kx: acc[y, x, c] += X[y + ky, x + kx, c] * W[ky, kx, c]
        for y, x, c: Y[y, x, c] = relu(acc[y, x, c])

        for y, xo in T.parallel(...): for co:
            for ky in T.unroll(3): for kx in T.unroll(3):
                for xi in T.unroll(4): for c in T.unroll(2): for v in T.vectorized(16): ...
            for xi in T.unroll(4): for v in T.vectorized(32): Y[...] = ...
    """
    form = match_window(func)
    if isinstance(form, Refusal):
        return form
    placed = dataclasses.replace(hint, producer_depth=0) if hint.inlined else hint
    refusal = misfit(placed, form.extents)
    if refusal is not None:
        return refusal
    if hint.inlined and not form.inlines:
        return Refusal("it has no padding that can be inlined")
    sch, anchor, facts = form.sch, form.anchor, form.facts
    for name in form.producers if hint.inlined else ():
        sch.compute_inline(sch.get_sblock(name))
    lanes = form.vector(hint.register_tile[-1], hint.arch, around=hint.inlined)
    loops = sch.get_loops(anchor)
    split = [
        sch.split(loops[i], [None, size])
        for i, size in zip(facts.spatial, hint.register_tile, strict=True)
    ]
    vectors = [split[-1][1]]
    if hint.register_tile[-1] % lanes == 0:
        vectors = list(sch.split(vectors[0], [None, lanes]))
    nest = NestLoops(
        units=unit_loops(facts, loops),
        outer=[outer for outer, _ in split],
        reduction=[loops[i] for i in facts.reduction],
        rows=[inner for _, inner in split[:-1]],
        vectors=vectors,
    )
    schedule_nest(form, placed, nest, unroll_reduction=form.unrolled_taps > 0)
    schedule_rest(sch, hint)
    return sch

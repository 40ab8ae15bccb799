"""Winograd convolution: input transform, one GEMM per point, output transform, epilogue.

A parallel task computes one L2 block: some tiles x some output channels. The transformed input and
the GEMM output of a block stay in the core's L2. The transforms are unrolled code for one vector of
channels of one tile. In bfloat16, the GEMM uses the CPU's dot product of two input channels; the
transforms and accumulators are float32, and the transformed input is stored in bfloat16.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.nest import (
    PREPROC,
    Dot,
    is_constant,
    tensorize,
    unroll_and_vectorize,
)
from tvmopt.kernels.cpu.common.stage import inline_injective, split_vector
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic, find_dot
from tvmopt.kernels.cpu.passes.prefetch import annotate_prefetch
from tvmopt.kernels.cpu.winograd.config import WinogradConfig
from tvmopt.kernels.winograd_matrices import WINOGRAD_ATTR
from tvmopt.kernels.workload import Refusal

# Maximum accumulators of the unrolled register tile, in vectors.
_MOST_UNROLLED = 64


@dataclasses.dataclass(frozen=True)
class WinogradForm:
    """A Winograd convolution, normalised: one epilogue block follows the output transform.

    Attributes:
        sch: Its schedule.
        m: Output tile size: m x m.
        pad: Block that pads the input; None without padding.
        data_rows: First half of the input transform (``bt @ d``).
        data: Second half of the input transform (``@ bt.T``).
        gemm: The batched GEMM; axes point y, point x, batch, tile y, tile x, output channel,
            input channel (reduction).
        out_rows: First half of the output transform (``at @ M``).
        out: Second half of the output transform (``@ at.T``).
        epilogue: Bias, residual, activation; axes batch, y, x, output channel.
        facts: Facts of ``gemm``.
        constant: Whether the weight is a parameter that does not change between calls.
    """

    sch: s_tir.Schedule
    m: int
    pad: SBlockRV | None
    data_rows: SBlockRV
    data: SBlockRV
    gemm: SBlockRV
    out_rows: SBlockRV
    out: SBlockRV
    epilogue: SBlockRV
    facts: BlockFacts
    constant: bool

    @property
    def producers(self) -> tuple[str, ...]:
        """Names of the blocks that produce the data: padding."""
        return (self.sch.get(self.pad).name_hint,) if self.pad is not None else ()

    @property
    def batch(self) -> int:
        """Batch size."""
        return self.facts.axes[2].extent

    @property
    def extents(self) -> tuple[int, int, int]:
        """Tiles along y, tiles along x, output channels: the axes of a configuration."""
        return (
            self.facts.axes[3].extent,
            self.facts.axes[4].extent,
            self.facts.axes[5].extent,
        )

    def dot(self, arch: CpuArch) -> DotIntrinsic | None:
        """Return the dot-product instruction of ``arch`` for the GEMM; None for vector FMAs."""
        data, weight = (str(read.buffer.dtype) for read in self.facts.reads)
        dot = find_dot(arch, data, weight)
        if dot is None or self.extents[2] % dot.lanes or self.channels % dot.depth:
            return None
        # The instruction needs a packed weight. TVM treats a loop of extent 1 as no reduction.
        return dot if self.constant and self.channels > dot.depth else None

    @property
    def channels(self) -> int:
        """Input channels (K of the GEMM)."""
        return self.facts.axes[6].extent


def match_winograd(func: tirx.PrimFunc) -> WinogradForm | Refusal:
    """Normalise ``func`` as the stages of a Winograd convolution."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    gemms = [b for b in leaf_blocks(sch) if WINOGRAD_ATTR in sch.get(b).annotations]
    if len(gemms) != 1:
        return Refusal("not lowered as Winograd convolution")
    [gemm] = gemms
    [data] = sch.get_producers(gemm)
    [data_rows] = sch.get_producers(data)
    [out_rows] = sch.get_consumers(gemm)
    [out] = sch.get_consumers(out_rows)
    stages = [data, data_rows, gemm, out_rows, out]
    pads = list(sch.get_producers(data_rows))
    stages += pads
    inline_injective(sch, kept={sch.get(stage).name_hint for stage in stages})
    facts = block_facts(sch, gemm)
    ends = list(sch.get_consumers(out))
    if len(ends) != 1 or len(pads) > 1 or len(block_facts(sch, ends[0]).axes) != 4:
        return Refusal("its padding or epilogue is not one block")
    return WinogradForm(
        sch=sch,
        m=int(sch.get(gemm).annotations[WINOGRAD_ATTR]),
        pad=pads[0] if pads else None,
        data_rows=data_rows,
        data=data,
        gemm=gemm,
        out_rows=out_rows,
        out=out,
        epilogue=ends[0],
        facts=facts,
        constant=is_constant(func, sch, facts.reads[1]),
    )


def emit(func: tirx.PrimFunc, hint: WinogradConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after::

        for i, j, y, x, c: V[i, j, y, x, c] = (bt d bt.T)[i, j]
        for i, j, y, x, o: for c: M[i, j, y, x, o] += V[i, j, y, x, c] * U[i, j, c, o]
        for y, x, o: Y[y, x, o] = relu((at M at.T)[y % m, x % m])

        for yt, xt, ot in T.parallel(...):
            for y, x, c: for i, j in T.unroll(...): for v in T.vectorized(16): V[...] = ...
            for i, j, y, x, o: acc = 0; for c: acc += V[...] * P[...]; M[...] = acc
            for y, x, o: for i, j in T.unroll(...): for v in T.vectorized(16): Y[...] = ...
    """
    form = match_winograd(func)
    if isinstance(form, Refusal):
        return form
    if not _fits(form, hint):
        return Refusal(
            f"register tile {hint.register_tile} in L2 block {hint.l2_block} of {form.extents} "
            "is not possible"
        )
    sch = form.sch
    vector = channel_vector(form.extents[2], hint.arch.lanes(form.facts.dtype))
    dot = form.dot(hint.arch)
    _pack(sch, form.gemm, hint.register_tile[-1], dot.depth if dot else 1, hint.packing)
    blocks = _schedule_out(form, hint, vector)
    gemm = _schedule_gemm(form, hint, vector, dot, blocks)
    _schedule_data(form, hint, blocks)
    if hint.parallel_loops:
        sch.parallel(sch.fuse(*blocks))
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    init = sch.decompose_reduction(form.gemm, gemm.reduction)
    unroll_and_vectorize(sch, sch.get_loops(init)[-4:])
    if gemm.dot:
        tensorize(sch, form.gemm, gemm.lanes, gemm.dot)
    return sch


def _fits(form: WinogradForm, hint: WinogradConfig) -> bool:
    tiles_y, tiles_x, outputs = form.extents
    vector = channel_vector(outputs, hint.arch.lanes(form.facts.dtype))
    return (
        len(hint.register_tile) == len(hint.l2_block) == 3
        and sorted(hint.loop_order) == [0, 1, 2]
        and all(1 <= b <= t for b, t in zip(hint.register_tile, hint.l2_block, strict=True))
        and hint.l2_block[0] <= tiles_y
        and hint.l2_block[1] <= tiles_x
        and outputs % hint.l2_block[2] == 0
        and hint.l2_block[2] % hint.register_tile[2] == 0
        and hint.register_tile[2] % vector == 0
        and math.prod(hint.register_tile) <= _MOST_UNROLLED * vector
        and hint.packing != "runtime"
        and (hint.packing == "prepacked" or form.dot(hint.arch) is None)
    )


def channel_vector(channels: int, lanes: int) -> int:
    """Return the channels per vector: a register, or a power-of-two part of it.

    For 16 lanes: 64 -> 16, 24 -> 8, 13 -> 1. LLVM scalarises loop-carried vectors of other lengths.
    """
    return math.gcd(channels, lanes)


def _pack(sch: s_tir.Schedule, gemm: SBlockRV, width: int, depth: int, pack: str) -> None:
    """Prepack the weight: (point y, point x, output tile, input channel, channel in the tile).

    For a dot-product instruction of ``depth`` multiply-adds, so many input channels are innermost.
    """
    if pack == "none":
        return

    def order(i: tirx.Var, j: tirx.Var, c: tirx.Var, o: tirx.Var) -> list[tirx.Expr]:
        group = [c % depth] if depth > 1 else []
        return [i, j, o // width, c // depth, o % width, *group]

    copy = sch.cache_read(gemm, 1, "global")
    sch.transform_layout(gemm, ("read", 1), tirx.IndexMap.from_func(order, ndim=4))
    sch.annotate(copy, PREPROC, True)


def _schedule_out(form: WinogradForm, hint: WinogradConfig, vector: int) -> list[LoopRV]:
    """Schedule output transform and epilogue: one vector of channels of one tile per iteration.

    Returns:
        The loops over L2 blocks.
    """
    sch, l2_block = form.sch, hint.l2_block
    batch, y, x, o = sch.get_loops(form.epilogue)
    y, y_in = sch.split(y, [None, form.m])
    x, x_in = sch.split(x, [None, form.m])
    y_block, y = sch.split(y, [None, l2_block[0]])
    x_block, x = sch.split(x, [None, l2_block[1]])
    o_block, o, o_in = sch.split(o, [None, l2_block[2] // vector, vector])
    over = (y_block, x_block, o_block)
    blocks = [batch, *(over[position] for position in hint.loop_order)]
    sch.reorder(*blocks, y, x, o, y_in, x_in, o_in)
    for stage in (form.out, form.out_rows):
        sch.set_scope(stage, 0, "local")
        sch.compute_at(stage, o, preserve_unit_loops=True)
        row, column, *_, lanes = sch.get_loops(stage)[len(blocks) + 3 :]
        unroll_and_vectorize(sch, [row, column, lanes])
    unroll_and_vectorize(sch, [y_in, x_in, o_in])
    return blocks


@dataclasses.dataclass(frozen=True)
class _GemmLoops:
    """Loops of the scheduled GEMM.

    Attributes:
        reduction: The loop over input channels, or groups of them.
        lanes: The loop over the lanes of a vector.
        dot: The dot-product instruction; None for vector FMAs.
    """

    reduction: LoopRV
    lanes: LoopRV
    dot: Dot | None


def _schedule_gemm(
    form: WinogradForm,
    hint: WinogradConfig,
    vector: int,
    dot: DotIntrinsic | None,
    blocks: list[LoopRV],
) -> _GemmLoops:
    """Schedule the GEMM of one L2 block with a register tile of accumulators."""
    sch, gemm = form.sch, form.gemm
    sch.compute_at(gemm, blocks[-1], preserve_unit_loops=True)
    row, column, batch, y, x, o, channel = sch.get_loops(gemm)[len(blocks) :]
    y, y_in = sch.split(y, [None, hint.register_tile[0]])
    x, x_in = sch.split(x, [None, hint.register_tile[1]])
    o, vectors, o_in = sch.split(o, [None, hint.register_tile[2] // vector, vector])
    channel, *group = sch.split(channel, [None, dot.depth]) if dot else [channel]
    sch.reorder(row, column, batch, o, y, x, channel, y_in, x_in, vectors, o_in, *group)
    store = sch.cache_write(gemm, 0, "local")
    sch.reverse_compute_at(store, x, preserve_unit_loops=True)
    unroll_and_vectorize(sch, sch.get_loops(store)[len(blocks) + 6 :])
    unroll_and_vectorize(sch, [y_in, x_in, vectors, o_in], vectorize=dot is None)
    annotate_prefetch(sch, channel, hint.prefetch_bytes, hint.arch)
    return _GemmLoops(channel, o_in, Dot(dot, *group) if dot else None)


def _schedule_data(form: WinogradForm, hint: WinogradConfig, blocks: list[LoopRV]) -> None:
    """Schedule the input transform: one vector of channels of one tile per iteration."""
    sch, data = form.sch, form.data
    lanes = hint.arch.lanes(form.facts.dtype)
    around: list[LoopRV] = []
    if hint.producer_depth:
        around = blocks
        sch.compute_at(data, blocks[-1], preserve_unit_loops=True)
    row, column, batch, y, x, c = sch.get_loops(data)[len(around) :]
    c, c_in = sch.split(c, [None, channel_vector(form.channels, lanes)])
    sch.reorder(batch, y, x, c, row, column, c_in)
    sch.set_scope(form.data_rows, 0, "local")
    sch.compute_at(form.data_rows, c, preserve_unit_loops=True)
    half = sch.get_loops(form.data_rows)[len(around) + 4 :]
    unroll_and_vectorize(sch, [half[0], half[1], half[-1]])
    unroll_and_vectorize(sch, [row, column, c_in])
    if form.pad is not None:
        sch.compute_at(form.pad, y, preserve_unit_loops=True)
        split_vector(sch, sch.get_loops(form.pad)[-1], lanes)
    if not around and hint.parallel_loops:
        sch.parallel(sch.fuse(batch, y))

"""Depthwise convolution in NHWC with dot products over the taps of an input row.

A tensor intrinsic computes a tile of outputs of one vector of channels
(:mod:`~tvmopt.kernels.cpu.intrinsics.depthwise_llvm`); a loop inside it walks along the columns. It
writes the accumulators to a scratch buffer in L1, from which the fused epilogue reads them.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx

from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cpu.common.nest import (
    PREPROC,
    misfit,
    parallelize_outer,
    place_producers,
    schedule_rest,
    unit_loops,
)
from tvmopt.kernels.cpu.common.weight_copy import copy_weight, dimension_axes
from tvmopt.kernels.cpu.depthwise_dot.config import DepthwiseDotConfig
from tvmopt.kernels.cpu.depthwise_dot.form import DepthwiseForm, match_depthwise
from tvmopt.kernels.cpu.intrinsics.depthwise import register_depthwise
from tvmopt.kernels.cpu.intrinsics.depthwise_tile import DepthwiseTile
from tvmopt.kernels.cpu.intrinsics.tap_dots import TapDot, find_tap_dot
from tvmopt.kernels.workload import Refusal

# Longest vector of the epilogue, in channels.
_LONGEST_STORE = 64


def emit(func: tirx.PrimFunc, hint: DepthwiseDotConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after, for tiles of 4 x 16 outputs of 64 channels, on 16 lanes::

        for y, x, c: for ky, kx: acc[y, x, c] += X[y + ky, x + kx, c] * W[ky, kx, c]
        for y, x, c: Y[y, x, c] = requantize(acc[y, x, c])

        for y, x in T.parallel(...): for co:
            for v in range(4): depthwise_tile(X[y * 4, x * 16, ...], P[...], acc[:, :, v * 16])
            for yi, xi in T.grid(4, 16): for v in T.vectorized(64): Y[...] = requantize(acc[...])
    """
    form = match_depthwise(func)
    if isinstance(form, Refusal):
        return form
    dot = find_tap_dot(hint.arch, str(form.data.buffer.dtype))
    if dot is None or dot.name != hint.intrinsic:
        return Refusal(f"{hint.intrinsic} is not the instruction for the data on this CPU")
    refusal = misfit(hint, form.extents) or _unfit_tile(form, hint, dot)
    if refusal is not None:
        return refusal
    tile = shaped(form, hint.register_tile, dot)
    sch, anchor, epilogue = form.sch, form.anchor, form.epilogue
    _prepack(form, tile)
    stored = math.gcd(hint.register_tile[-1], _LONGEST_STORE)
    _split_channels(form, stored)
    facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    split = [
        sch.split(loops[i], [None, size])
        for i, size in zip(facts.spatial, hint.register_tile, strict=True)
    ]
    units = unit_loops(facts, loops)
    around = [*units, *(split[position][0] for position in hint.loop_order)]
    image, *pixel, channels = (inner for _, inner in split)
    *vectors, lanes = sch.split(channels, [None, stored // dot.lanes, dot.lanes])
    tiled = [*pixel, lanes, *(loops[i] for i in facts.reduction)]
    single = [loop for loop in tiled if int(sch.get(loop).extent) == 1]
    tiled = [loop for loop in tiled if int(sch.get(loop).extent) > 1]
    sch.reorder(*around, image, *vectors, *single, *tiled)
    sch.reverse_compute_at(epilogue, around[-1], preserve_unit_loops=True)
    _schedule_epilogue(form, len(around), stored)
    place_producers(sch, anchor, around, len(units), hint)
    parallelize_outer(sch, around, len(units), hint)
    block = sch.blockize(tiled[0])
    init = sch.decompose_reduction(block, image)
    convolution, nothing = register_depthwise(tile)
    sch.tensorize(init, nothing)
    sch.tensorize(block, convolution)
    schedule_rest(sch, hint)
    return sch


def _split_channels(form: DepthwiseForm, count: int) -> None:
    """Keep ``count`` channels of the accumulators of all pixels together.

    Before -> after, for 16 channels::

        acc[n, y, x, c]  ->  acc[n, c // 16, y, x, c % 16]
    """

    def split(n: tirx.Var, y: tirx.Var, x: tirx.Var, c: tirx.Var) -> list[tirx.Expr]:
        return [n, c // count, y, x, c % count]

    index_map = tirx.IndexMap.from_func(split, ndim=4)
    form.sch.transform_layout(form.anchor, ("write", 0), index_map)


def _schedule_epilogue(form: DepthwiseForm, depth: int, length: int) -> None:
    """Vectorise the epilogue below ``depth``; its operands per channel stay in registers.

    LLVM stores a vector of bytes element by element unless its length is a power of two.
    """
    sch = form.sch
    *pixel, channels = sch.get_loops(form.epilogue)[depth:]
    vectors, lanes = sch.split(channels, [None, length])
    sch.reorder(vectors, *pixel, lanes)
    sch.vectorize(lanes)


def shaped(form: DepthwiseForm, register_tile: tuple[int, ...], dot: TapDot) -> DepthwiseTile:
    """Return the tile of the intrinsic for a register tile."""
    _, rows, columns, _ = register_tile
    if form.kernel[1] > 1:
        return DepthwiseTile(dot, form.signed, form.kernel, form.stride, rows, columns)
    kernel, stride = form.kernel[::-1], form.stride[::-1]
    return DepthwiseTile(dot, form.signed, kernel, stride, columns, rows, transposed=True)


def _unfit_tile(form: DepthwiseForm, hint: DepthwiseDotConfig, dot: TapDot) -> Refusal | None:
    """Return why the register tile is not made of whole vectors and does not divide the axes."""
    tile = hint.register_tile
    if tile[0] != 1 or tile[-1] % dot.lanes:
        return Refusal(f"the register tile {tile} is not made of vectors of one image")
    if any(extent % size for extent, size in zip(form.extents, tile, strict=True)):
        return Refusal(f"the register tile {tile} does not divide {tuple(form.extents)}")
    return None


def _prepack(form: DepthwiseForm, tile: DepthwiseTile) -> None:
    """Pack the weight at build time; further taps of a word are zero.

    Before -> after, for a window of 3 x 3, 4 taps per word, 16 lanes::

        W[ky, kx, c]  ->  P[c // 16, ky, (kx + 1) // 4, c % 16, (kx + 1) % 4]
    """
    sch, anchor = form.sch, form.anchor
    facts = block_facts(sch, anchor)
    copy = copy_weight(sch, anchor, form.weight)
    dimension = {i: d for d, i in dimension_axes(sch, anchor, copy).items()}
    window = facts.reduction[::-1] if tile.transposed else facts.reduction
    channel = dimension[facts.spatial[-1]]
    ky, kx = (dimension.get(i) for i in window)
    lanes, taps, first = tile.dot.lanes, tile.dot.taps, tile.first_tap

    def packed(*at: tirx.Var) -> list[tirx.Expr]:
        zero = tirx.IntImm("int64", 0)
        c = at[channel]
        x = (at[kx] if kx is not None else zero) + first
        return [c // lanes, zero if ky is None else at[ky], x // taps, c % lanes, x % taps]

    rank = len(sch.get(copy).writes[0].source.shape)
    index_map = tirx.IndexMap.from_func(packed, ndim=rank)
    name = sch.get(copy).name_hint
    sch.transform_layout(copy, ("write", 0), index_map, pad_value=0)
    sch.annotate(sch.get_sblock(name), PREPROC, True)

"""Configurations of the Hopper kernels, ranked by modelled cycles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from tvmopt.arch.cuda import CudaArch
from tvmopt.hopper.config import DEPTH_BYTES, SHARED_BYTES, Config
from tvmopt.hopper.conv_problem import ConvProblem
from tvmopt.hopper.hints import CONV, GEMM, hint_of
from tvmopt.hopper.line_problem import LineProblem
from tvmopt.hopper.model import conv_cost, gemm_cost
from tvmopt.hopper.pixels import boxes
from tvmopt.hopper.pixels import why_not as why_not_conv
from tvmopt.hopper.problem import BYTES, GemmProblem, ceil_div

from .ranked import GpuRanked

# Rows of a tile: groups of 64 of each warpgroup, and warpgroups.
_ROWS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))
_COLUMNS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 256)
# The same where operands change places: the columns are then the rows of C, whose last tile may be
# nearly empty.
_MORE_COLUMNS = tuple(sorted({*_COLUMNS, 40, 56, 72, 88, 104, 120, 136, 152, 176, 200}))
# Rows up to which the operands may change places; and beyond them the part of all 64-row tiles that
# is empty from which on they may.
_FEW, _EMPTY = 128, 0.06
_MOST_STAGES = 12
_SPLITS = (1, 2, 3, 4, 6, 8)
# Steps of the depth that a part must have where parts are added up by a second kernel.
_LEAST_STEPS = 4


def gemm_hints(problem: GemmProblem, arch: CudaArch) -> list[GpuRanked]:
    """Every configuration of ``hopper_gemm`` that computes ``problem``, best first.

    Args:
        problem: The product.
        arch: The GPU; without warpgroup instructions there are none.
    """
    if not arch.has_wgmma or problem.why_not:
        return []
    found = []
    swap = problem.m <= _FEW or _empty(problem.m) >= _EMPTY
    plain = _configs(problem.out, arch, swap=swap, whole=_has_residual(problem))
    for config in (*plain, *_apart(problem, arch, swap)):
        if config.why_not(problem) is None:
            cost = gemm_cost(problem, config, arch)
            hint = hint_of(GEMM, config, problem.dtype, arch)
            found.append(GpuRanked(hint, cost.cycles, cost.facts))
    return sorted(found, key=lambda r: r.cycles)


def conv_hints(problem: ConvProblem | LineProblem, arch: CudaArch) -> list[GpuRanked]:
    """Every configuration of ``hopper_conv`` that computes ``problem``, best first."""
    if not arch.has_wgmma or problem.why_not:
        return []
    found = []
    tiled = problem.tiled if isinstance(problem, ConvProblem) else problem
    copied = problem.copied_bytes if isinstance(problem, ConvProblem) else 0
    for config in _configs(problem.out, arch, swap=False, whole=_has_residual(tiled)):
        if why_not_conv(tiled, config) is None:
            box = boxes(tiled, 64 * config.atoms)[0]
            cost = conv_cost(tiled, config, box, arch, copied)
            hint = hint_of(CONV, config, problem.dtype, arch, box)
            found.append(GpuRanked(hint, cost.cycles, cost.facts))
    return sorted(found, key=lambda r: r.cycles)


def _empty(rows: int) -> float:
    """The part of the fewest 64-row tiles of ``rows`` that has none of them."""
    whole = 64 * ceil_div(rows, 64)
    return (whole - rows) / whole


def _has_residual(problem: GemmProblem | ConvProblem | LineProblem) -> bool:
    """Whether the epilogue reads an input of the output's shape."""
    ending = problem.epilogue
    return ending is not None and any(all(along) for _, along in ending.reads)


def _configs(out: str, arch: CudaArch, *, swap: bool, whole: bool) -> Iterator[Config]:
    """Tiles, each with as many stages as fit, and the ways in which they leave.

    Args:
        out: Type of the output.
        arch: The GPU.
        swap: Whether operands may change places.
        whole: Whether there may be room for all that leaves of a tile, so that an input of the
            output's shape can be loaded ahead.
    """
    swapped = _MORE_COLUMNS if swap else ()
    for (atoms, consumers), columns, split in itertools.product(_ROWS, swapped, _SPLITS):
        yield from _filled(
            Config(
                atoms, consumers, columns, split=split, swap=True, staged=True, persistent=False,
                sms=arch.sms,
            )
        )  # fmt: skip
    for (atoms, consumers), columns in itertools.product(_ROWS, _COLUMNS):
        plain = Config(atoms, consumers, columns, sms=arch.sms)
        for cluster in (1, 2):
            chunks = columns * BYTES[out] // 128
            for buffers in sorted({1, 2, chunks} if whole and chunks else {1, 2}):
                if columns * BYTES[out] % (128 * buffers) == 0:
                    yield from _filled(
                        dataclasses.replace(plain, cluster=cluster, buffers=buffers)
                    )
        for persistent in (True, False):
            yield from _filled(
                dataclasses.replace(plain, staged=True, persistent=persistent)
            )
        for split in _SPLITS[1:]:
            part = dataclasses.replace(plain, persistent=False, split=split)
            yield from _filled(dataclasses.replace(part, staged=True))
            yield from _filled(dataclasses.replace(part, buffers=1))


def _apart(problem: GemmProblem, arch: CudaArch, swap: bool) -> Iterator[Config]:
    """Tiles so few that each one's depth is divided among thread blocks that fill the GPU."""
    steps = ceil_div(problem.k * BYTES[problem.dtype], DEPTH_BYTES)
    ways = [(columns, False) for columns in _COLUMNS]
    ways += [(columns, True) for columns in _MORE_COLUMNS if swap]
    for (atoms, consumers), (columns, swapped) in itertools.product(_ROWS, ways):
        left, right = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        plain = Config(atoms, consumers, columns, apart=True, swap=swapped, sms=arch.sms)
        tiles = ceil_div(left, plain.rows) * ceil_div(right, columns) * problem.batch
        for split in {arch.sms // tiles, 2 * arch.sms // tiles}:
            if split > 1 and steps >= _LEAST_STEPS * split:
                whole = dataclasses.replace(plain, split=split)
                for buffers in (1, 2):
                    yield from _filled(dataclasses.replace(whole, buffers=buffers))
                yield from _filled(dataclasses.replace(whole, staged=True, persistent=False))


def _filled(config: Config) -> Iterator[Config]:
    """``config`` with the most stages that fit."""
    for stages in range(_MOST_STAGES, 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.shared_bytes <= SHARED_BYTES:
            yield full
            return

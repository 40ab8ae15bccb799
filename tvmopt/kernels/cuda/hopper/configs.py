"""Enumerate configurations of the Hopper kernels, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES, SHARED_BYTES, Config
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.cost import (
    HopperCost,
    conv_cost,
    exceeds_l2,
    gemm_cost,
    moved_bytes,
)
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.hints import CONV, GEMM, hint_of
from tvmopt.kernels.cuda.hopper.pixels import boxes
from tvmopt.kernels.cuda.hopper.pixels import why_not as why_not_conv
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.tile_scheduler import RASTERS, ranked_rasters
from tvmopt.kernels.ranked import Ranked

# Tile heights: (64-row wgmma tiles of a warpgroup, consumer warpgroups).
_ROWS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))
_COLUMNS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 256)
# Finer tile widths, where the last tile may be nearly empty: with swapped A and B (the columns are
# the M of the problem), or for a narrow C.
_MORE_COLUMNS = tuple(sorted({*_COLUMNS, 40, 56, 72, 88, 104, 120, 136, 152, 176, 200}))
# Swap A and B up to this M; beyond, only if at least this fraction of the 64-row tiles is padding.
# Also swap where only A is K-major: tiles of an MN-major right operand are multiples of 64 wide.
_FEW, _EMPTY = 128, 0.06
# N up to which every tile width is tried.
_FEW_COLUMNS = 512
# Number of top configurations that are tried with other rasterisation orders too; relative
# slowdown that is predicted for each order after the first.
_OTHER_RASTERS, _OTHER_RASTER = 2, 0.01
# Stages from which on two wgmma groups may be in flight.
_QUEUED_FROM = 6
_MOST_STAGES = 12
_SPLITS = (1, 2, 3, 4, 6, 8)
# Cluster shapes (along rows, along columns) for TMA multicast.
_SHARING = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
# Ratio of L2 to tensor-core cycles below which multicast is not tried.
_BOUND = 0.5
# Relative time up to which a configuration with more multicast is still tried.
_NEARLY = 1.03
# Fewest K blocks of a slice of split-K through workspace.
_LEAST_STEPS = 4


def gemm_hints(problem: GemmProblem, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return all ``hopper_gemm`` configurations for ``problem``, fastest predicted first.

    Args:
        problem: The GEMM.
        arch: The GPU; without wgmma the list is empty.
    """
    if not arch.has_wgmma or problem.why_not:
        return []
    found: list[tuple[HopperCost, Config]] = []
    swap = problem.m <= _FEW or _empty(problem.m) >= _EMPTY or problem.major == (True, False)
    plain = _configs(
        problem.out, arch, swap=swap, fine=problem.n <= _FEW_COLUMNS,
        whole=_has_residual(problem),
    )  # fmt: skip
    best: dict[Config, HopperCost] = {}
    for config in (*plain, *_apart(problem, arch, swap)):
        # Keep multicast only where the model predicts a gain or nearly no loss.
        key = dataclasses.replace(config, cluster=1, beside=1, flight=1)
        before = best.get(key) if config.sharers > 1 else None
        if before is not None and before.l2 < _BOUND * before.compute:
            continue
        if config.why_not(problem) is None:
            cost = gemm_cost(problem, config, arch)
            least = math.inf if before is None else before.cycles
            if cost.cycles < _NEARLY * least:
                found.append((cost, config))
            if cost.cycles < least:
                best[key] = cost
    return _in_order(problem, sorted(found, key=lambda pair: pair[0].cycles), arch)


def _in_order(
    problem: GemmProblem, found: Sequence[tuple[HopperCost, Config]], arch: CudaArch
) -> list[Ranked[CudaHint]]:
    """Attach rasterisation orders to ``found`` (fastest first); the top ones get several.

    Problems larger than L2 get the largest raster groups, so that all SMs share more of L2.
    """
    far = exceeds_l2(moved_bytes(problem), arch)
    ranked = []
    for number, (cost, config) in enumerate(found):
        rows, columns = (problem.n, problem.m) if config.swap else (problem.m, problem.n)
        rasters = RASTERS[:1] if far else ranked_rasters(config, rows, columns)
        for place, raster in enumerate(rasters[: None if number < _OTHER_RASTERS else 1]):
            ordered = dataclasses.replace(config, raster=raster)
            hint = hint_of(GEMM, ordered, problem.dtype, arch)
            cycles = cost.cycles * (1.0 + _OTHER_RASTER * place)
            ranked.append(Ranked(hint, cycles, cost.facts))
    return sorted(ranked, key=lambda r: r.cycles)


def conv_hints(problem: ConvProblem | LineProblem, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return all ``hopper_conv`` configurations for ``problem``, fastest predicted first."""
    if not arch.has_wgmma or problem.why_not:
        return []
    found = []
    tiled = problem.tiled if isinstance(problem, ConvProblem) else problem
    copied = problem.copied_bytes if isinstance(problem, ConvProblem) else 0
    for config in _configs(problem.out, arch, whole=_has_residual(tiled)):
        if why_not_conv(tiled, config) is None:
            box = boxes(tiled, 64 * config.atoms)[0]
            cost = conv_cost(tiled, config, box, arch, copied)
            hint = hint_of(CONV, config, problem.dtype, arch, box)
            found.append(Ranked(hint, cost.cycles, cost.facts))
    return sorted(found, key=lambda r: r.cycles)


def _empty(rows: int) -> float:
    """Return the padding fraction of ``rows`` in tiles of 64 rows."""
    whole = 64 * ceil_div(rows, 64)
    return (whole - rows) / whole


def _has_residual(problem: GemmProblem | ConvProblem | LineProblem) -> bool:
    """Whether the epilogue reads an input of the output's shape."""
    ending = problem.epilogue
    return ending is not None and any(all(along) for _, along in ending.reads)


def _configs(
    out: str, arch: CudaArch, *, swap: bool = False, fine: bool = False, whole: bool = False
) -> Iterator[Config]:
    """Yield tiles with as many stages as fit, each with every epilogue store and split-K.

    Args:
        out: Output dtype.
        arch: The GPU.
        swap: Whether to include swapped A and B.
        fine: Whether to try every tile width, because N is small.
        whole: Whether to include epilogue buffers that hold a whole tile, so that a residual can
            be prefetched.
    """
    widths = _MORE_COLUMNS if fine else _COLUMNS
    for (atoms, consumers), columns in itertools.product(_ROWS, widths):
        plain = Config(atoms, consumers, columns, sms=arch.sms)
        chunks = ceil_div(columns * BYTES[out], 128)
        for buffers in sorted({1, 2, chunks} if whole else {1, 2}):
            if chunks % buffers == 0:
                for config in (plain, *_shared(plain)):
                    yield from _filled(dataclasses.replace(config, buffers=buffers))
        for config in (plain, *_shared(plain)):
            once = dataclasses.replace(config, persistent=False)
            yield from _filled(dataclasses.replace(once, buffers=chunks))
            yield from _filled(dataclasses.replace(once, staged=True))
            yield from _filled(dataclasses.replace(config, staged=True))
        for split in _SPLITS[1:]:
            part = dataclasses.replace(plain, persistent=False, split=split)
            yield from _filled(dataclasses.replace(part, staged=True))
            yield from _filled(dataclasses.replace(part, buffers=1))
    if swap:
        for (atoms, consumers), columns in itertools.product(_ROWS, _MORE_COLUMNS):
            exchanged = Config(
                atoms, consumers, columns, swap=True, persistent=False, buffers=atoms,
                sms=arch.sms,
            )  # fmt: skip
            for split in _SPLITS:
                part = dataclasses.replace(exchanged, split=split)
                yield from _filled(dataclasses.replace(part, staged=True))
                yield from _filled(dataclasses.replace(part, buffers=1 if split > 1 else atoms))
            for config in _shared(exchanged):
                yield from _filled(config)


def _shared(config: Config) -> Iterator[Config]:
    """Yield ``config`` with each cluster shape for multicast."""
    for cluster, beside in _SHARING:
        yield dataclasses.replace(config, cluster=cluster, beside=beside)


def _apart(problem: GemmProblem, arch: CudaArch, swap: bool) -> Iterator[Config]:
    """Yield split-K through workspace, with slices that fill the GPU where tiles do not."""
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
    """Yield ``config`` with the most stages that fit.

    With multicast, thread blocks wait for each other's loads: a deeper wgmma queue hides that.
    """
    for stages in range(min(_MOST_STAGES, SHARED_BYTES // config.stage_bytes), 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.shared_bytes <= SHARED_BYTES:
            queued = 2 if config.sharers > 1 and stages >= _QUEUED_FROM else 1
            yield dataclasses.replace(full, flight=queued)
            return

"""Enumerate configurations of the Hopper kernels, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import (
    CONV,
    GEMM,
    K_BLOCK_BYTES,
    HopperConfig,
    HopperConvConfig,
)
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.cost import (
    COSTS,
    HopperCost,
    conv_cost,
    exceeds_l2,
    gemm_cost,
    moved_bytes,
)
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.pixels import boxes
from tvmopt.kernels.cuda.hopper.pixels import why_not as why_not_conv
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.tile_scheduler import RASTER_GROUPS, ranked_raster_groups
from tvmopt.kernels.ranked import Ranked

_Config = TypeVar("_Config", bound=HopperConfig)

# Tile heights: (64-row wgmma tiles of a warpgroup, consumer warpgroups).
_HEIGHTS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))
_TILE_N = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 256)
# Finer tile widths, where the last tile may be nearly empty: with swapped A and B (the columns are
# the M of the problem), or for a narrow C.
_FINE_TILE_N = tuple(sorted({*_TILE_N, 40, 56, 72, 88, 104, 120, 136, 152, 176, 200}))
# Swap A and B up to this M; beyond, only where 64-row tiles have much padding. Also swap where only
# A is K-major: tiles of an MN-major right operand are multiples of 64 wide.
_SWAP_MAX_M = 128
# N up to which every tile width is tried.
_FINE_MAX_N = 512
# Number of top configurations that are tried with other rasterisation orders too.
_RASTERED = 2
# Stages from which on two wgmma groups may be in flight.
_WAIT_DEPTH_2_STAGES = 6
_MOST_STAGES = 12
_SPLIT_K = (1, 2, 3, 4, 6, 8)
# Cluster shapes (M, N) for TMA multicast.
_CLUSTERS = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
# Fewest K blocks of a slice of split-K through workspace.
_MIN_SLICE = 4


def gemm_configs(problem: GemmProblem, arch: CudaArch) -> list[Ranked[HopperConfig]]:
    """Return all ``hopper_gemm`` configurations for ``problem``, fastest predicted first.

    Args:
        problem: The GEMM.
        arch: The GPU; without wgmma the list is empty.
    """
    if not arch.has_wgmma or problem.refusal:
        return []
    base = HopperConfig(GEMM, arch, K_BLOCK_BYTES // BYTES[problem.dtype])
    found: list[tuple[HopperCost, HopperConfig]] = []
    swap = (
        problem.m <= _SWAP_MAX_M
        or _padding(problem.m) >= COSTS.swap_min_padding
        or problem.k_major == (True, False)
    )
    plain = _configs(
        base, problem.out, swap=swap, fine=problem.n <= _FINE_MAX_N, whole=_has_residual(problem)
    )
    best: dict[HopperConfig, HopperCost] = {}
    least_l2 = COSTS.multicast_min_l2_over_compute
    for config in (*plain, *_workspace_split_k(base, problem, swap)):
        # Keep multicast only where the model predicts a gain or nearly no loss.
        key = dataclasses.replace(config, cluster_m=1, cluster_n=1, wgmma_wait_depth=1)
        before = best.get(key) if config.multicast_size > 1 else None
        if before is not None and before.l2 < least_l2 * before.compute:
            continue
        if config.why_not(problem) is None:
            cost = gemm_cost(problem, config)
            least = math.inf if before is None else before.cycles
            if cost.cycles < COSTS.multicast_max_cycles_ratio * least:
                found.append((cost, config))
            if cost.cycles < least:
                best[key] = cost
    return _in_order(problem, sorted(found, key=lambda pair: pair[0].cycles), arch)


def _in_order(
    problem: GemmProblem, found: Sequence[tuple[HopperCost, HopperConfig]], arch: CudaArch
) -> list[Ranked[HopperConfig]]:
    """Attach rasterisation orders to ``found`` (fastest first); the top ones get several.

    Problems larger than L2 get the largest raster groups, so that all SMs share more of L2.
    """
    far = exceeds_l2(moved_bytes(problem), arch)
    ranked = []
    for number, (cost, config) in enumerate(found):
        rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
        groups = RASTER_GROUPS[:1] if far else ranked_raster_groups(config, rows, columns)
        for place, group in enumerate(groups[: None if number < _RASTERED else 1]):
            ordered = dataclasses.replace(config, raster_group=group)
            ranked.append(
                Ranked(ordered, cost.cycles * (1.0 + COSTS.raster_slowdown * place), cost.facts)
            )
    return sorted(ranked, key=lambda r: r.cycles)


def conv_configs(
    problem: ConvProblem | FewChannelsProblem, arch: CudaArch
) -> list[Ranked[HopperConvConfig]]:
    """Return all ``hopper_conv`` configurations for ``problem``, fastest predicted first."""
    if not arch.has_wgmma or problem.refusal:
        return []
    base = HopperConvConfig(CONV, arch, K_BLOCK_BYTES // BYTES[problem.dtype])
    found = []
    tiled = problem.tiled if isinstance(problem, ConvProblem) else problem
    packing = problem.packing_bytes if isinstance(problem, ConvProblem) else 0
    for config in _configs(base, problem.out, whole=_has_residual(tiled)):
        if why_not_conv(tiled, config) is None:
            box = boxes(tiled, config.warpgroup_m)[0]
            cost = conv_cost(tiled, config, box, packing)
            boxed = dataclasses.replace(config, pixel_box=box)
            found.append(Ranked(boxed, cost.cycles, cost.facts))
    return sorted(found, key=lambda r: r.cycles)


def _padding(rows: int) -> float:
    """Return the padding fraction of ``rows`` in tiles of 64 rows."""
    whole = 64 * ceil_div(rows, 64)
    return (whole - rows) / whole


def _has_residual(problem: GemmProblem | ConvProblem | FewChannelsProblem) -> bool:
    """Whether the epilogue reads an input of the output's shape."""
    epilogue = problem.epilogue
    return epilogue is not None and any(all(along) for _, along in epilogue.reads)


def _configs(
    base: _Config, out: str, *, swap: bool = False, fine: bool = False, whole: bool = False
) -> Iterator[_Config]:
    """Yield tiles with as many stages as fit, each with every epilogue store and split-K.

    Args:
        base: Template, GPU and K block.
        out: Output dtype.
        swap: Whether to include swapped A and B.
        fine: Whether to try every tile width, because N is small.
        whole: Whether to include epilogue buffers that hold a whole tile, so that a residual can
            be prefetched.
    """
    replace = dataclasses.replace
    for plain in _tiles(base, _FINE_TILE_N if fine else _TILE_N):
        width = ceil_div(plain.tile_n * BYTES[out], 128)
        for buffers in sorted({1, 2, width} if whole else {1, 2}):
            if width % buffers == 0:
                for config in (plain, *_multicast(plain)):
                    yield from _filled(replace(config, epilogue_buffers=buffers))
        for config in (plain, *_multicast(plain)):
            once = replace(config, persistent=False)
            yield from _filled(replace(once, epilogue_buffers=width))
            yield from _filled(replace(once, smem_store=True))
            yield from _filled(replace(config, smem_store=True))
        for split in _SPLIT_K[1:]:
            part = replace(plain, persistent=False, split_k=split)
            yield from _filled(replace(part, smem_store=True))
            yield from _filled(replace(part, epilogue_buffers=1))
    if swap:
        for plain in _tiles(base, _FINE_TILE_N):
            atoms = plain.m_atoms
            swapped = replace(plain, swap_ab=True, persistent=False, epilogue_buffers=atoms)
            for split in _SPLIT_K:
                part = replace(swapped, split_k=split)
                yield from _filled(replace(part, smem_store=True))
                yield from _filled(replace(part, epilogue_buffers=1 if split > 1 else atoms))
            for config in _multicast(swapped):
                yield from _filled(config)


def _tiles(base: _Config, widths: Sequence[int]) -> Iterator[_Config]:
    """Yield ``base`` with each tile height and each of the tile widths."""
    for (atoms, consumers), width in itertools.product(_HEIGHTS, widths):
        yield dataclasses.replace(base, m_atoms=atoms, consumer_warpgroups=consumers, tile_n=width)


def _multicast(config: _Config) -> Iterator[_Config]:
    """Yield ``config`` with each cluster shape for multicast."""
    for m, n in _CLUSTERS:
        yield dataclasses.replace(config, cluster_m=m, cluster_n=n)


def _workspace_split_k(
    base: HopperConfig, problem: GemmProblem, swap: bool
) -> Iterator[HopperConfig]:
    """Yield split-K through workspace, with slices that fill the GPU where tiles do not."""
    steps = ceil_div(problem.k * BYTES[problem.dtype], K_BLOCK_BYTES)
    replace, sms = dataclasses.replace, base.arch.sms
    ways = [(width, False) for width in _TILE_N]
    ways += [(width, True) for width in _FINE_TILE_N if swap]
    for (atoms, consumers), (width, swapped) in itertools.product(_HEIGHTS, ways):
        left, right = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        plain = replace(
            base, m_atoms=atoms, consumer_warpgroups=consumers, tile_n=width,
            split_k_workspace=True, swap_ab=swapped,
        )  # fmt: skip
        tiles = ceil_div(left, plain.tile_m) * ceil_div(right, width) * problem.batch
        for split in {sms // tiles, 2 * sms // tiles}:
            if split > 1 and steps >= _MIN_SLICE * split:
                whole = replace(plain, split_k=split)
                for buffers in (1, 2):
                    yield from _filled(replace(whole, epilogue_buffers=buffers))
                yield from _filled(replace(whole, smem_store=True, persistent=False))


def _filled(config: _Config) -> Iterator[_Config]:
    """Yield ``config`` with the most stages that fit.

    With multicast, thread blocks wait for each other's loads: a deeper wgmma queue hides that.
    """
    capacity = config.arch.smem_bytes
    for stages in range(min(_MOST_STAGES, capacity // config.stage_bytes), 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.smem_bytes <= capacity:
            multicast = config.multicast_size > 1
            depth = 2 if multicast and stages >= _WAIT_DEPTH_2_STAGES else 1
            yield dataclasses.replace(full, wgmma_wait_depth=depth)
            return

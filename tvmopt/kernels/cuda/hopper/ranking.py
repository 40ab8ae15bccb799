"""Rank the configurations of the Hopper kernels by predicted cycles."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import (
    CONV,
    GEMM,
    HopperConfig,
    HopperConvConfig,
)
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.cost import (
    HopperCost,
    conv_cost,
    exceeds_l2,
    gemm_cost,
    moved_bytes,
)
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.pixels import boxes
from tvmopt.kernels.cuda.hopper.pixels import why_not as why_not_conv
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.space import tiled_configs, workspace_configs
from tvmopt.kernels.cuda.hopper.tile_scheduler import RASTER_GROUPS, ranked_raster_groups
from tvmopt.kernels.ranked import Ranked

# Swap A and B up to this M; beyond, only where 64-row tiles have much padding. Also swap where only
# A is K-major: tiles of an MN-major right operand fill their stage only at multiples of 64 columns.
_SWAP_MAX_M = 128
# N up to which every tile width is tried.
_FINE_MAX_N = 512
# Number of top configurations that are tried with other rasterisation orders too.
_RASTERED = 2


def gemm_configs(problem: GemmProblem, arch: CudaArch) -> list[Ranked[HopperConfig]]:
    """Return all ``hopper_gemm`` configurations for ``problem``, fastest predicted first.

    Args:
        problem: The GEMM.
        arch: The GPU; without wgmma the list is empty.
    """
    if not arch.has_wgmma or problem.refusal:
        return []
    base = HopperConfig(GEMM, arch, K_BLOCK_BYTES // BYTES[problem.dtype], parts=problem.parts)
    found: list[tuple[HopperCost, HopperConfig]] = []
    swap = (
        problem.m <= _SWAP_MAX_M
        or _padding(problem.m) >= COSTS.swap_min_padding
        or problem.k_major == (True, False)
    )
    fine, whole = problem.n <= _FINE_MAX_N, _has_residual(problem)
    plain = _tiled_with_bases(base, problem.dtype, problem.out, swap, fine, whole)
    if problem.k_major == (False, False):
        # Neither operand allows tiles of other widths than 64 while its stage holds just a tile.
        blocks = base.replaced(whole_blocks=True)
        plain += _tiled_with_bases(blocks, problem.dtype, problem.out, swap, fine, whole)
    split = _with_bases(workspace_configs(base, problem, swap), problem.dtype)
    best: dict[HopperConfig, HopperCost] = {}
    least_l2 = COSTS.multicast_min_l2_over_compute
    for config, key in (*plain, *split):
        # Keep multicast only where the model predicts a gain or nearly no loss.
        before = best.get(key) if config.multicast_size > 1 else None
        if before is not None and before.l2 < least_l2 * before.compute:
            continue
        if config.why_not_problem(problem) is None:
            cost = gemm_cost(problem, config)
            least = math.inf if before is None else before.cycles
            if cost.cycles < COSTS.multicast_max_cycles_ratio * least:
                found.append((cost, config))
            if cost.cycles < least:
                best[key] = cost
    return _in_order(problem, sorted(found, key=lambda pair: pair[0].cycles), arch)


_WithBases: TypeAlias = tuple[tuple[HopperConfig, HopperConfig], ...]


@functools.lru_cache(maxsize=8)  # some thousand configurations each; they depend on no extent
def _tiled_with_bases(
    base: HopperConfig, dtype: str, out: str, swap: bool, fine: bool, whole: bool
) -> _WithBases:
    """Return the :func:`tiled_configs` that fit operands of ``dtype``, each with its base."""
    return _with_bases(tiled_configs(base, out, swap=swap, fine=fine, whole=whole), dtype)


def _with_bases(configs: Iterable[HopperConfig], dtype: str) -> _WithBases:
    """Pair each configuration that fits ``dtype`` with its base: the same without multicast."""
    return tuple(
        (c, c.replaced(cluster_m=1, cluster_n=1, wgmma_wait_depth=1))
        for c in configs
        if c.why_not_dtype(dtype) is None
    )


def _in_order(
    problem: GemmProblem, found: Sequence[tuple[HopperCost, HopperConfig]], arch: CudaArch
) -> list[Ranked[HopperConfig]]:
    """Attach rasterisation orders to ``found`` (fastest first); the top ones get several.

    Problems larger than L2 get the largest raster groups, so that all SMs share more of L2.
    """
    far = exceeds_l2(moved_bytes(problem), arch)
    known: dict[tuple[object, ...], tuple[int, ...]] = {}
    ranked = []
    for number, (cost, config) in enumerate(found):
        rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
        tiling = config.tile_m, config.tile_n, config.swap_ab, config.cluster_size
        if tiling not in known:
            known[tiling] = (
                RASTER_GROUPS[:1] if far else ranked_raster_groups(config, rows, columns)
            )
        groups = known[tiling]
        if len(groups) > 1:
            tiles = ceil_div(rows, config.tile_m), ceil_div(columns, config.tile_n)
            more = [
                COSTS.raster_slowdown * place * cost.cycles + _raster_cycles(group, *tiles)
                for place, group in enumerate(groups)
            ]
            groups = tuple(g for _, g in sorted(zip(more, groups, strict=True)))
        for place, group in enumerate(groups[: None if number < _RASTERED else 1]):
            ordered = config.replaced(raster_group=group)
            ranked.append(
                Ranked(ordered, cost.cycles * (1.0 + COSTS.raster_slowdown * place), cost.facts)
            )
    return sorted(ranked, key=lambda r: r.cycles)


def _raster_cycles(group: int, down: int, across: int) -> float:
    """Return the cycles that a raster group of some rows costs at the start of a kernel.

    Plain row-major and column-major orders need no division by the height of a group. Of them, the
    one that follows the shorter side of the grid of tiles is faster.
    """
    if 1 < group < down:
        return COSTS.raster_group_cycles
    along_rows = group < down
    longer = across > down if along_rows else down > across
    return COSTS.raster_longer_side_cycles if longer else 0.0


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
    for config in tiled_configs(base, problem.out, whole=_has_residual(tiled)):
        if why_not_conv(tiled, config) is None:
            box = boxes(tiled, config.warpgroup_m)[0]
            cost = conv_cost(tiled, config, box, packing)
            boxed = config.replaced(pixel_box=box)
            found.append(Ranked(boxed, cost.cycles, cost.facts))
    return sorted(found, key=lambda r: r.cycles)


def _padding(rows: int) -> float:
    """Return the padding fraction of ``rows`` in tiles of 64 rows."""
    whole = 64 * ceil_div(rows, 64)
    return (whole - rows) / whole


def _has_residual(problem: GemmProblem | ConvProblem | FewChannelsProblem) -> bool:
    """Whether the epilogue reads an input of the output's shape, of elements as wide."""
    epilogue = problem.epilogue
    return epilogue is not None and any(
        all(along) and BYTES.get(str(buffer.dtype)) == BYTES[problem.out]
        for buffer, along in epilogue.reads
    )

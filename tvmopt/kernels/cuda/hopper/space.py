"""Configuration space of the Hopper kernels: the tiles and options that are tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, ceil_div

# Tile heights: (64-row wgmma tiles of a warpgroup, consumer warpgroups).
_HEIGHTS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))
_TILE_N = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 256)
# Finer tile widths, where the last tile may be nearly empty: with swapped A and B (the columns are
# the M of the problem), or for a narrow C.
_FINE_TILE_N = tuple(sorted({*_TILE_N, 40, 56, 72, 88, 104, 120, 136, 152, 176, 200}))
# Stages from which on two wgmma groups may be in flight.
_WAIT_DEPTH_2_STAGES = 6
_MOST_STAGES = 12
_SPLIT_K = (1, 2, 3, 4, 6, 8)
# Cluster shapes (M, N) for TMA multicast.
_CLUSTERS = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
# Fewest K blocks of a slice of split-K through workspace.
_MIN_SLICE = 4

_Config = TypeVar("_Config", bound=HopperConfig)


def tiled_configs(
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
    for plain in _tiles(base, _FINE_TILE_N if fine else _TILE_N):
        width = ceil_div(plain.tile_n * BYTES[out], 128)
        for buffers in sorted({1, 2, width} if whole else {1, 2}):
            if width % buffers == 0:
                for config in (plain, *_multicast(plain)):
                    yield from _filled(config.replaced(epilogue_buffers=buffers))
                if plain.consumer_warpgroups == 2:
                    pingpong = plain.replaced(pingpong=True, epilogue_buffers=buffers)
                    yield from _filled(pingpong)
        for config in (plain, *_multicast(plain)):
            once = config.replaced(persistent=False)
            yield from _filled(once.replaced(epilogue_buffers=width))
            yield from _filled(once.replaced(smem_store=True))
            yield from _filled(config.replaced(smem_store=True))
        for split in _SPLIT_K[1:]:
            part = plain.replaced(persistent=False, split_k=split)
            yield from _filled(part.replaced(smem_store=True))
            yield from _filled(part.replaced(epilogue_buffers=1))
    if swap:
        for plain in _tiles(base, _FINE_TILE_N):
            atoms = plain.m_atoms
            swapped = plain.replaced(swap_ab=True, persistent=False, epilogue_buffers=atoms)
            for split in _SPLIT_K:
                part = swapped.replaced(split_k=split)
                yield from _filled(part.replaced(smem_store=True))
                yield from _filled(part.replaced(epilogue_buffers=1 if split > 1 else atoms))
            for config in _multicast(swapped):
                yield from _filled(config)


def _tiles(base: _Config, widths: Sequence[int]) -> Iterator[_Config]:
    """Yield ``base`` with each tile height and each of the tile widths."""
    for (atoms, consumers), width in itertools.product(_HEIGHTS, widths):
        yield base.replaced(m_atoms=atoms, consumer_warpgroups=consumers, tile_n=width)


def _multicast(config: _Config) -> Iterator[_Config]:
    """Yield ``config`` with each cluster shape for multicast."""
    for m, n in _CLUSTERS:
        yield config.replaced(cluster_m=m, cluster_n=n)


def workspace_configs(
    base: HopperConfig, problem: GemmProblem, swap: bool
) -> Iterator[HopperConfig]:
    """Yield split-K through workspace, with slices that fill the GPU where tiles do not."""
    steps = problem.k_blocks
    sms = base.arch.sms
    ways = [(width, False) for width in _TILE_N]
    ways += [(width, True) for width in _FINE_TILE_N if swap]
    for (atoms, consumers), (width, swapped) in itertools.product(_HEIGHTS, ways):
        left, right = (problem.n, problem.m) if swapped else (problem.m, problem.n)
        plain = base.replaced(
            m_atoms=atoms, consumer_warpgroups=consumers, tile_n=width,
            split_k_workspace=True, swap_ab=swapped,
        )  # fmt: skip
        tiles = ceil_div(left, plain.tile_m) * ceil_div(right, width) * problem.batch
        for split in {sms // tiles, 2 * sms // tiles}:
            if split > 1 and steps >= _MIN_SLICE * split:
                whole = plain.replaced(split_k=split)
                for buffers in (1, 2):
                    yield from _filled(whole.replaced(epilogue_buffers=buffers))
                yield from _filled(whole.replaced(smem_store=True, persistent=False))


def _filled(config: _Config) -> Iterator[_Config]:
    """Yield ``config`` with the most stages that fit.

    With multicast, thread blocks wait for each other's loads: a deeper wgmma queue hides that.
    """
    capacity = config.arch.smem_bytes
    for stages in range(min(_MOST_STAGES, capacity // config.stage_bytes), 1, -1):
        full = config.replaced(stages=stages)
        if full.smem_bytes <= capacity:
            multicast = config.multicast_size > 1
            depth = 2 if multicast and stages >= _WAIT_DEPTH_2_STAGES else 1
            yield full.replaced(wgmma_wait_depth=depth)
            return

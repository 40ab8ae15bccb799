"""Enumerate configurations of the block reduction template, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvm import s_tir

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.block_reduction.config import BlockReductionConfig
from tvmopt.kernels.cuda.block_reduction.schedule import NAME, along_reduction, contiguous_elements
from tvmopt.kernels.cuda.common.inlining import spatial_extent
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.vectors import widest
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.ranked import Ranked

# Reductions an SM from which on templates without exchange between threads suffice; elements of a
# reduction that one thread may well reduce alone; fewest elements of all reductions together.
_MANY, _ALONE, _SHORT = 16, 64, 512


def block_reduction_hints(
    sch: s_tir.Schedule, arch: CudaArch
) -> list[Ranked[BlockReductionConfig]]:
    """Return the ``gpu_block_reduction`` configurations; none for many or short reductions.

    Args:
        sch: A schedule of the function, everything inlined.
        arch: The GPU.

    Returns:
        The configurations, fastest predicted first.
    """
    blocks = all_facts(sch)
    reductions = [f for f in blocks if f.reduced > 1]
    if not reductions or any(f.reduction and f.reduced == 1 for f in blocks):
        return []
    shortest = min(f.reduced for f in reductions)
    results = max(spatial_extent(f) for f in reductions)
    if shortest < _ALONE or max(f.work for f in reductions) < _SHORT:
        return []
    if results > _MANY * arch.sms:
        return []
    work = {f.name: float_work(sch, f.name) for f in blocks}
    divisible = len(reductions) == 1 or all(spatial_extent(f) > 1 for f in reductions)
    ranked = []
    for share, place, parts, unroll in itertools.product(
        (32, 64, 128, 256, 512),
        (1, 2, 4, 8, 16, 32),
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        (1, 4),
    ):
        if not 64 <= share * place <= 1024 or place > 2 * results:
            continue
        if parts > 1 and (not divisible or shortest < 2 * parts * share):
            continue
        if shortest < share or (parts > 1 and unroll > 1):
            continue
        config = BlockReductionConfig(NAME, arch, place, share, parts, unroll)
        cycles = sum(_kernels(facts, config, work[facts.name]) for facts in blocks)
        ranked.append(Ranked(config, cycles * arch.costs.block_reduction_time_ratio))
    return sorted(ranked, key=lambda r: r.cycles)


def _kernels(facts: BlockFacts, config: BlockReductionConfig, work: float) -> float:
    """Return the cycles of the kernels of one block."""
    arch, costs = config.arch, config.arch.costs
    fixed, load = costs.block_reduction_instructions, costs.load_instructions
    if facts.reduced == 1:
        vector = 4
        stream = StreamCost(
            blocks=math.ceil(facts.work / vector / 256),
            threads=256,
            compulsory_bytes=traffic(facts),
            in_flight_bytes=float(vector * widest(facts)),
            instructions=fixed + vector * (work + load),
        )
        return stream.cycles(arch)
    place, share, parts = config.threads, config.reduce_threads, config.split_k
    results, unroll = spatial_extent(facts), config.unroll
    along, size = along_reduction(facts), widest(facts)
    steps = math.ceil(facts.reduced / (share * parts))
    flying = unroll if steps % unroll == 0 else 1
    piece = size * (min(share, contiguous_elements(facts)) if along else min(place, results))
    shuffles = math.log2(share) * facts.stores
    cross_warp = costs.cross_warp_cycles * facts.stores if share > arch.warp or not along else 0.0
    stream = StreamCost(
        blocks=math.ceil(results / place) * parts,
        threads=share * place,
        compulsory_bytes=traffic(facts) / min(1.0, piece / arch.sector),
        in_flight_bytes=float(size * flying),
        instructions=fixed + steps * (work + load) + shuffles * costs.shuffle_instructions,
        wait_cycles=shuffles * costs.shuffle_cycles + cross_warp,
        load_rounds=math.ceil(steps / flying),
    )
    cycles = stream.cycles(arch)
    if parts > 1:
        last = StreamCost(
            blocks=math.ceil(results / place),
            threads=min(256, 2 ** math.ceil(math.log2(parts))) * place,
            compulsory_bytes=4.0 * facts.stores * results * (parts + 1),
            in_flight_bytes=4.0 * facts.stores,
            instructions=fixed + 2.0 * load + shuffles * costs.shuffle_instructions,
            wait_cycles=shuffles * costs.shuffle_cycles + costs.cross_warp_cycles * facts.stores,
        )
        cycles += last.cycles(arch)
    return cycles

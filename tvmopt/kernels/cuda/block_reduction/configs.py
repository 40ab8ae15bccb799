"""Enumerate configurations of the block reduction template, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvm import s_tir

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.block_reduction.schedule import NAME, along_reduction, side_by_side
from tvmopt.kernels.cuda.common.steps import spatial_extent, widest
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.ranked import Ranked

# Reductions an SM from which on templates without exchange between threads suffice; elements of a
# reduction that one thread may well reduce alone; fewest elements of all reductions together.
_MANY, _ALONE, _SHORT = 16, 64, 512
# Instructions of a thread besides its elements; instructions of a load with its index.
_PROLOGUE, _LOAD = 40.0, 8.0
# Instructions of one shuffle step; its cycles; cycles of a reduction between warps.
_SHUFFLE, _SHUFFLE_WAIT, _BARRIERS = 6.0, 45.0, 150.0
# Smallest memory transaction in bytes.
_SECTOR = 32.0
# Safety factor: unlike the competing models, this one is not fitted to measurements.
_UNSURE = 1.25


def block_reduction_hints(sch: s_tir.Schedule, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return the ``gpu_block_reduction`` configurations; none for many or short reductions.

    Args:
        sch: A schedule of the function, everything inlined.
        arch: The GPU.

    Returns:
        The configurations, fastest predicted first.
    """
    blocks = all_facts(sch)
    sums = [f for f in blocks if f.reduced > 1]
    if not sums or any(f.reduction and f.reduced == 1 for f in blocks):
        return []
    if min(f.reduced for f in sums) < _ALONE or max(f.work for f in sums) < _SHORT:
        return []
    if max(spatial_extent(f) for f in sums) > _MANY * arch.sms:
        return []
    work = {f.name: float_work(sch, f.name) for f in blocks}
    divisible = len(sums) == 1 or all(spatial_extent(f) > 1 for f in sums)
    ranked = []
    for share, place, parts, unroll in itertools.product(
        (32, 64, 128, 256, 512),
        (1, 2, 4, 8, 16, 32),
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        (1, 4),
    ):
        if not 64 <= share * place <= 1024 or place > 2 * max(spatial_extent(f) for f in sums):
            continue
        if parts > 1 and (not divisible or min(f.reduced for f in sums) < 2 * parts * share):
            continue
        if min(f.reduced for f in sums) < share or (parts > 1 and unroll > 1):
            continue
        hint = CudaHint(
            NAME, arch, thread=(place,), reduce_threads=share, split_k=parts,
            options=(("unroll", unroll),),
        )  # fmt: skip
        cycles = sum(_kernels(facts, hint, work[facts.name]) for facts in blocks)
        ranked.append(Ranked(hint, cycles * _UNSURE))
    return sorted(ranked, key=lambda r: r.cycles)


def _kernels(facts: BlockFacts, hint: CudaHint, work: float) -> float:
    """Return the cycles of the kernels of one block."""
    arch = hint.arch
    if facts.reduced == 1:
        vector = 4
        stream = StreamCost(
            blocks=math.ceil(facts.work / vector / 256),
            threads=256,
            moved=traffic(facts),
            flight=float(vector * widest(facts)),
            instructions=_PROLOGUE + vector * (work + _LOAD),
        )
        return stream.cycles(arch)
    (place,), share, parts = hint.thread, hint.reduce_threads, hint.split_k
    results, unroll = spatial_extent(facts), hint.option("unroll", 1)
    along, size = along_reduction(facts), widest(facts)
    steps = math.ceil(facts.reduced / (share * parts))
    flying = unroll if steps % unroll == 0 else 1
    piece = size * (min(share, side_by_side(facts)) if along else min(place, results))
    exchange = math.log2(share) * facts.stores
    apart = _BARRIERS * facts.stores if share > arch.warp or not along else 0.0
    stream = StreamCost(
        blocks=math.ceil(results / place) * parts,
        threads=share * place,
        moved=traffic(facts) / min(1.0, piece / _SECTOR),
        flight=float(size * flying),
        instructions=_PROLOGUE + steps * (work + _LOAD) + exchange * _SHUFFLE,
        chain=exchange * _SHUFFLE_WAIT + apart,
        rounds=math.ceil(steps / flying),
    )
    cycles = stream.cycles(arch)
    if parts > 1:
        last = StreamCost(
            blocks=math.ceil(results / place),
            threads=min(256, 2 ** math.ceil(math.log2(parts))) * place,
            moved=4.0 * facts.stores * results * (parts + 1),
            flight=4.0 * facts.stores,
            instructions=_PROLOGUE + 2.0 * _LOAD + exchange * _SHUFFLE,
            chain=exchange * _SHUFFLE_WAIT + _BARRIERS * facts.stores,
        )
        cycles += last.cycles(arch)
    return cycles

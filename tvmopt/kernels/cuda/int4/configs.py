"""Enumerate configurations of the int4 GEMV template, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.int4.form import Int4Form
from tvmopt.kernels.cuda.int4.schedule import NAME, int4_layout
from tvmopt.kernels.cuda.int4.source import STAGE, TILE
from tvmopt.kernels.ranked import Ranked

# Instructions of a warp for 16 rows of a stage; more for fine scales; instructions of a stage.
_TILE_WORK, _FINE_WORK, _STAGE_WORK = 190.0, 64.0, 70.0
# Latency of a load in cycles; cycles until a block's first MMA, and after its last.
_LATENCY, _START, _END = 1100.0, 1800.0, 500.0
# Share of the bandwidth that is reached at best; share of the issue slots.
_REACHED, _ISSUE = 0.92, 0.7
_REGISTERS = 64


def int4_hints(form: Int4Form, arch: CudaArch) -> list[Ranked[Int4Config]]:
    """Return the ``gpu_int4`` configurations, fastest predicted first; none without MMA."""
    if arch.sm < 80:
        return []
    stages = math.ceil(form.depth / STAGE)
    ranked = []
    for tiles, groups, share, deep in itertools.product(
        (1, 2), (1, 2, 4, 8), (1, 2, 4, 8, 16), (2, 3, 4, 6)
    ):
        block, warps = TILE * tiles * groups, share * groups
        if not 4 <= warps <= 16 or share > stages or block * form.batch > 32 * warps:
            continue
        if (block > TILE and block >= 2 * form.rows) or deep > 1 + math.ceil(stages / share):
            continue
        hint = Int4Config(NAME, arch, block, TILE * tiles, share, deep)
        size = int4_layout(form, hint).size
        if size > arch.smem_bytes:
            continue
        cycles, parts = _modelled(form, hint, size)
        ranked.append(Ranked(hint, cycles, parts))
    return sorted(ranked, key=lambda r: r.cycles)


def _modelled(form: Int4Form, hint: Int4Config, size: int) -> tuple[float, tuple[float, ...]]:
    """Return the predicted cycles of the kernel, and their parts."""
    arch, block, tiles = hint.arch, hint.tile, hint.warp_tile // TILE
    warps = block // hint.warp_tile * hint.reduce_warps
    blocks = math.ceil(form.rows / block)
    resident = min(
        arch.smem_sm_bytes // (size + 1024),
        arch.threads_sm // (32 * warps),
        arch.registers_sm // (32 * warps * _REGISTERS),
    )
    here = min(resident, math.ceil(blocks / arch.sms))
    turns = math.ceil(blocks / arch.sms)  # blocks of the busiest SM
    waves = turns / here
    moved = block * (form.depth / 2.0 + 2.0 * form.depth / form.group)
    far = form.rows / block * moved > 0.5 * arch.l2_bytes
    total = arch.dram_bytes_cycle if far else arch.l2_bytes_cycle
    flight = here * warps * (hint.stages - 1) * hint.warp_tile * STAGE / 2.0
    rate = min(total * _REACHED / min(blocks, arch.sms), flight / _LATENCY)
    fine = form.scales is not None and form.group < STAGE // 2
    each = math.ceil(math.ceil(form.depth / STAGE) / hint.reduce_warps)
    work = each * (_STAGE_WORK + tiles * (_TILE_WORK + _FINE_WORK * fine))
    memory = turns * moved / rate
    issue = turns * warps * work / (arch.partitions * _ISSUE)
    start = _START + form.batch * form.depth / (32.0 * warps) + hint.reduce_warps * 15.0
    wait = math.ceil(waves) * (start + _END)
    total = arch.costs.launch_cycles + max(memory, issue) + 0.2 * min(memory, issue) + wait
    return total, (memory, issue, wait)

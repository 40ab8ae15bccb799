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

_REGISTERS = 64
# Cycles between two instructions of a warp, whose MMAs wait for each other.
_CYCLES_PER_INSTRUCTION = 4.0
# Share of the SMs that draws the whole bandwidth of DRAM; fewer draw less. On an H100, GEMVs with
# blocks for 128 of 132 SMs and 14 warps each took 0.82 of the time with 112 and 7 (2026-11-28).
_SMS_OF_BANDWIDTH = 0.95

# RMSNorm in the kernel: a barrier between the loads of the activation and its stores, and further
# work per element of a thread. Estimates, not measured.
_NORM_CYCLES, _NORM_WORK = 400.0, 1.0


def int4_hints(form: Int4Form, arch: CudaArch) -> list[Ranked[Int4Config]]:
    """Return the ``gpu_int4`` configurations, fastest predicted first; none without MMA."""
    if arch.sm < 80:
        return []
    stages = math.ceil(form.depth / STAGE)
    ranked = []
    for tiles, groups, share, deep in itertools.product(
        (1, 2), range(1, 8 * form.parts + 1), (1, 2, 4, 8, 16), (2, 3, 4, 6)
    ):
        block, warps = TILE * tiles * groups, share * groups
        columns = block // form.parts
        if not 4 <= warps <= 16 or share > stages or block % (TILE * form.parts):
            continue
        if columns * form.batch > 32 * warps or deep > 1 + math.ceil(stages / share):
            continue
        if columns > TILE and columns >= 2 * form.columns:
            continue
        config = Int4Config(NAME, arch, block, TILE * tiles, share, deep)
        size = int4_layout(form, config).size
        if size > arch.smem_bytes:
            continue
        cycles, parts = _modelled(form, config, size)
        ranked.append(Ranked(config, cycles, parts))
    return sorted(ranked, key=lambda r: r.cycles)


def _modelled(form: Int4Form, config: Int4Config, size: int) -> tuple[float, tuple[float, ...]]:
    """Return the predicted cycles of the kernel, and their parts."""
    arch, costs = config.arch, config.arch.costs
    block, tiles = config.tile, config.warp_tile // TILE
    warps = block // config.warp_tile * config.reduce_warps
    blocks = math.ceil(form.columns / (block // form.parts))
    resident = min(
        arch.smem_sm_bytes // (size + 1024),
        arch.threads_sm // (32 * warps),
        arch.registers_sm // (32 * warps * _REGISTERS),
    )
    here = min(resident, math.ceil(blocks / arch.sms))
    blocks_per_sm = math.ceil(blocks / arch.sms)  # of the busiest SM
    waves = blocks_per_sm / here
    moved = block * (form.depth / 2.0 + 2.0 * form.depth / form.group)
    far = form.rows / block * moved > costs.l2_resident_share * arch.l2_bytes
    total = arch.dram_bytes_cycle if far else arch.l2_bytes_cycle
    # A warp requests a stage when it starts on another one: half a stage less than the ring's.
    in_flight = here * warps * (config.stages - 1.5) * config.warp_tile * STAGE / 2.0
    drawing = max(min(blocks, arch.sms), _SMS_OF_BANDWIDTH * arch.sms)
    sm_rate = total * costs.stream_bandwidth_share / drawing
    rate = min(sm_rate, in_flight / costs.int4_load_latency_cycles)
    tile_work = costs.int4_tile_instructions
    if form.scales is not None and form.group < STAGE // 2:
        tile_work += costs.int4_fine_scale_instructions
    each = math.ceil(math.ceil(form.depth / STAGE) / config.reduce_warps)
    work = each * (costs.int4_stage_instructions + tiles * tile_work)
    memory = blocks_per_sm * moved / rate
    a_scheduler = math.ceil(here * warps / arch.partitions) / costs.int4_issue_slot_share
    issue = waves * work * max(a_scheduler, _CYCLES_PER_INSTRUCTION)
    start = costs.int4_start_cycles + form.batch * form.depth / (32.0 * warps)
    start += config.reduce_warps * 15.0
    if form.norm is not None:
        start += _NORM_CYCLES + _NORM_WORK * form.batch * form.depth / (32.0 * warps)
    wait = math.ceil(waves) * (start + costs.int4_end_cycles)
    exposed = costs.exposed_share * min(memory, issue)
    cycles = costs.launch_cycles + max(memory, issue) + exposed + wait
    return cycles, (memory, issue, wait)

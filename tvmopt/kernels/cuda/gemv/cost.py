"""Cost model of the GEMV kernel: bandwidth, instruction issue, and the latency of one warp."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.gemv.schedule import GemvForm
from tvmopt.kernels.ranked import Ranked

# Bytes of the widest load of a thread.
_WIDEST = 16


@dataclasses.dataclass(frozen=True)
class GemvProblem:
    """A GEMV as its cost model sees it, common to all configurations.

    Attributes:
        rows: Rows of the weight.
        batch: Rows of the activation.
        pieces: Elements of a row of the weight; packed words count as one.
        packed: Values in one word of the weight.
        weight_bytes: Bytes of an element (or word) of the weight.
        x_bytes: Bytes of an element of the activation.
        integer: Whether the accumulator is an integer, whose additions the compiler may reorder.
        moved: Compulsory memory traffic in bytes.
    """

    rows: int
    batch: int
    pieces: int
    packed: int
    weight_bytes: int
    x_bytes: int
    integer: bool
    moved: float

    @classmethod
    def of(cls, form: GemvForm) -> GemvProblem:
        """Analyse ``form``."""
        facts = form.facts
        depth = next(i for i in facts.reduction if form.weight.strides[i] == 1)
        others = [r for r in facts.reads if not r.buffer.same_as(form.weight.buffer)]
        return cls(
            rows=math.prod(facts.axes[i].extent for i in form.rows),
            batch=math.prod(facts.axes[i].extent for i in form.batch),
            pieces=facts.axes[depth].extent,
            packed=form.packed,
            weight_bytes=int(form.weight.buffer.dtype.itemsize),
            x_bytes=max(int(r.buffer.dtype.itemsize) for r in others),
            integer="int" in str(facts.write.buffer.dtype),
            moved=traffic(facts),
        )


def gemv_cost(problem: GemvProblem, config: GemvConfig) -> Ranked[GemvConfig]:
    """Return ``config`` with its predicted cycles; infinite if its registers do not fit."""
    arch, costs, batch = config.arch, config.arch.costs, problem.batch
    each, share, vector = config.rows_per_thread, config.reduce_threads, config.vector_elements
    warps = math.ceil(config.threads * share / arch.warp)
    resident = _resident(problem, config, warps)
    if not resident:
        return Ranked(config, math.inf, (math.inf,))
    blocks = math.ceil(problem.rows / (config.threads * each))
    busiest = math.ceil(blocks / arch.sms)  # the busiest SM runs whole blocks
    waves = blocks / (resident * arch.sms)
    memory = _memory(problem, config, busiest, waves)
    instructions = _instructions(problem, config)
    issue = busiest * warps * instructions / (arch.partitions * costs.issue_slot_share)
    near = _near(problem, arch)
    latency = costs.gemv_l2_wait_cycles if near else costs.gemv_dram_wait_cycles
    alone = costs.gemv_integer_cycles if problem.integer else costs.gemv_instruction_cycles
    steps = math.ceil(problem.pieces / vector / share)
    # nvcc unrolls loops itself, unless some threads skip a step.
    guarded = problem.pieces // vector % share != 0
    ahead = max(config.unroll, 1 if guarded else min(costs.gemv_unrolled_steps, steps))
    warp = math.ceil(waves) * (instructions * alone + latency * math.ceil(steps / ahead))
    # Threads read x again for each row of theirs, through L1.
    x = problem.rows / each * batch * problem.pieces * problem.packed * problem.x_bytes
    cached = x / (min(blocks, arch.sms) * costs.gemv_l1_bytes_per_cycle)
    power = costs.overlap_exponent
    overlapped = sum(c**power for c in (memory, issue, cached, warp)) ** (1 / power)
    reduction = each * batch * math.log2(share) * costs.gemv_shuffle_cycles
    if share > arch.warp:
        reduction += math.sqrt(each * batch) * costs.gemv_cross_warp_cycles
    launches = costs.gemv_launch_cycles + busiest * costs.gemv_block_cycles
    # Until the next block's first load arrives; the SM's other blocks hide it.
    launches += costs.gemv_next_block_cycles * max(0.0, waves - 1.0) / resident
    facts = (memory, cached, issue, warp, reduction, float(math.ceil(waves)))
    return Ranked(config, launches + overlapped + reduction, facts)


def _near(problem: GemvProblem, arch: CudaArch) -> bool:
    """Whether L2 holds the operands."""
    return problem.moved < arch.costs.gemv_l2_resident_share * arch.l2_bytes


def _resident(problem: GemvProblem, config: GemvConfig, warps: int) -> int:
    """Return the resident blocks of an SM (occupancy)."""
    arch, each, vector = config.arch, config.rows_per_thread, config.vector_elements
    registers = 32 + (each + vector * problem.packed // 2) * problem.batch
    registers += vector * problem.weight_bytes // 4 * each * config.unroll
    most = min(arch.blocks_sm, arch.threads_sm // (warps * arch.warp))
    return min(most, arch.registers_sm // (warps * arch.warp * registers))


def _memory(problem: GemvProblem, config: GemvConfig, busiest: int, waves: float) -> float:
    """Return the cycles to read the weight: of the whole GPU or of the busiest SM."""
    arch, costs = config.arch, config.arch.costs
    if _near(problem, arch):
        rate = arch.l2_bytes_cycle * costs.gemv_l2_bandwidth_ratio
    else:
        rate = arch.dram_bytes_cycle * costs.stream_bandwidth_share
    rows = min(problem.rows, busiest * config.threads * config.rows_per_thread)
    own = problem.moved * rows / problem.rows / costs.sm_tile_bytes_per_cycle
    # SMs differ in speed; the faster ones take more of the blocks after the first wave, if any.
    tail = max(0.0, costs.gemv_wave_tail_share - max(0.0, 1.0 - 1.0 / waves))
    return max(problem.moved / rate, own) * (1.0 + tail)


def _instructions(problem: GemvProblem, config: GemvConfig) -> float:
    """Return the instructions of a thread."""
    costs, batch = config.arch.costs, problem.batch
    each, share, vector = config.rows_per_thread, config.reduce_threads, config.vector_elements
    elements = vector * problem.packed
    unpack = costs.unpack_instructions
    unpack = unpack if problem.packed > 1 else _convert(problem.weight_bytes, config.arch)
    step = elements * (each * (unpack + batch) + batch * _convert(problem.x_bytes, config.arch))
    step += (each + batch) * costs.gemv_load_instructions + costs.gemv_step_instructions
    if problem.pieces // vector % share:
        wide = vector * problem.weight_bytes >= _WIDEST
        step += costs.gemv_wide_guard_instructions if wide else costs.gemv_guard_instructions
    if problem.rows % (config.threads * each):
        step += each * costs.gemv_row_guard_instructions
    steps = math.ceil(problem.pieces / vector / share)
    shuffles = each * batch * math.log2(share) * costs.gemv_shuffle_instructions
    return costs.gemv_instructions + steps * step + shuffles


def _convert(size: int, arch: CudaArch) -> float:
    """Return the issue slots to convert an element of ``size`` bytes to the accumulator's dtype."""
    if size == 1:
        return arch.costs.gemv_convert_byte_slots
    return arch.costs.gemv_convert_half_slots if size == 2 else 0.0

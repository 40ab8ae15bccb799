"""Cost model of memory-bound kernels: traffic, bytes in flight, instruction issue, waves."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cuda import CudaArch


@dataclasses.dataclass(frozen=True)
class StreamCost:
    """One kernel, as the model sees it.

    Attributes:
        blocks: Thread blocks.
        threads: Threads of a block.
        compulsory_bytes: Bytes that are read or written for the first time.
        reread_bytes: Bytes that are read again.
        block_reread_bytes: Bytes that a block reads again some time later; from L2 if the blocks of
            one SM have more of them together than its L1 holds.
        in_flight_bytes: Bytes in flight of a thread.
        instructions: Instructions of a thread, in total.
        wait_cycles: Cycles that a block waits for itself (barriers, shuffles, dependent steps).
        load_rounds: Number of dependent waits of a thread for memory.
        warp_lines: 128-byte lines that the loads and stores of a warp touch, in total.
        registers: 32-bit registers of a thread.
        smem_bytes: Shared memory of a block, in bytes.
    """

    blocks: int
    threads: int
    compulsory_bytes: float
    reread_bytes: float = 0.0
    block_reread_bytes: float = 0.0
    in_flight_bytes: float = 16.0
    instructions: float = 50.0
    wait_cycles: float = 0.0
    load_rounds: float = 1.0
    warp_lines: float = 0.0
    registers: int = 32
    smem_bytes: int = 0

    def resident(self, arch: CudaArch) -> int:
        """Return the resident blocks of an SM (occupancy)."""
        warps = math.ceil(self.threads / arch.warp) * arch.warp
        most = min(arch.blocks_sm, arch.threads_sm // warps)
        most = min(most, arch.registers_sm // (warps * max(16, self.registers)))
        if self.smem_bytes:
            most = min(most, arch.smem_sm_bytes // (self.smem_bytes + 1024))
        return max(most, 0)

    def parts(self, arch: CudaArch) -> tuple[float, ...]:
        """Return cycles of memory, cached reads, issue, waits; waves. ``(inf,)`` if none fit."""
        resident = self.resident(arch)
        if not resident:
            return (math.inf,)
        costs = arch.costs
        fits = self.compulsory_bytes < costs.l2_resident_share * arch.l2_bytes
        latency = costs.l2_latency_cycles if fits else costs.dram_latency_cycles
        total = arch.l2_bytes_cycle if fits else arch.dram_bytes_cycle
        total *= costs.stream_bandwidth_share
        sms = min(self.blocks, arch.sms)
        here = min(resident, math.ceil(self.blocks / arch.sms))
        in_flight = here * self.threads * self.in_flight_bytes
        rate = min(total / sms, in_flight / latency, costs.sm_l2_bytes_per_cycle)
        memory = self.compulsory_bytes / (rate * sms)
        cached = self.reread_bytes / (costs.sm_l2_bytes_per_cycle * sms)
        cache = arch.smem_sm_bytes - resident * self.smem_bytes
        if here * self.block_reread_bytes > costs.l1_resident_share * cache:
            memory += self.reread_bytes / (arch.l2_bytes_cycle * costs.stream_bandwidth_share)
            cached = 0.0
        warps = math.ceil(self.threads / arch.warp)
        # The busiest SM issues for whole blocks.
        busiest = math.ceil(self.blocks / arch.sms)
        issue = busiest * warps * self.instructions / (arch.partitions * costs.issue_slot_share)
        # Blocks of two warps or fewer wait for each other's launches; larger ones were not seen to.
        launches = busiest * costs.small_block_launch_cycles / max(1.0, warps / 2.0)
        issue = max(issue, launches, busiest * warps * self.warp_lines)
        waves = math.ceil(self.blocks / (resident * arch.sms))
        issue = max(issue, waves * self.instructions * costs.lone_warp_instruction_cycles)
        wait = latency * self.load_rounds + self.wait_cycles
        return memory, cached, issue, wait, float(waves)

    def cycles(self, arch: CudaArch) -> float:
        """Return the cycles from the launch of this kernel to the launch of the next."""
        found = self.parts(arch)
        if len(found) == 1:
            return math.inf
        memory, cached, issue, wait, waves = found
        costs = arch.costs
        # Only the first wave's wait is exposed; later ones hide behind other blocks.
        tail = wait * (1.0 + costs.wave_tail_share * (waves - 1.0))
        # If all threads load at once and compute afterwards, the two do not overlap.
        once = costs.single_wait_exposed_share / (waves * max(1.0, self.load_rounds))
        share = costs.exposed_share
        exposed = min(share + once, 1.0) * min(memory, issue)
        return costs.launch_cycles + max(memory, issue, cached) + exposed + tail

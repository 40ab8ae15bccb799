"""Cost model of memory-bound kernels: traffic, bytes in flight, instruction issue, waves."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cuda import CudaArch

#: Cycles from a launch to the first instruction plus from the last one to the next launch.
LAUNCH = 2500.0
# Latency in cycles: of DRAM under load, and of L2.
_FAR = 900.0
_NEAR = 300.0
# Share of the bandwidth that a stream of reads and writes reaches at best.
_REACHED = 0.92
# Most L2 bandwidth of one SM, in bytes a cycle.
_PORT = 64.0
# Share of L1 in which rows stay until they are read again.
_CACHE = 0.75
# Share of the issue slots that is used at best.
_ISSUE = 0.8
# Cycles between two instructions of one warp, without contention.
_ALONE = 2.5
# Share of the shorter of memory and issue time that the longer one does not hide; more of it where
# threads wait only once for all that they compute.
_APART, _ONCE = 0.2, 0.6
# Cycles between two launches of blocks with two warps or fewer on one SM; larger blocks were not
# seen to wait for each other.
_BLOCK = 170.0


@dataclasses.dataclass(frozen=True)
class StreamCost:
    """One kernel, as the model sees it.

    Attributes:
        blocks: Thread blocks.
        threads: Threads of a block.
        moved: Bytes that are read or written for the first time.
        again: Bytes that are read again.
        kept: Bytes that a block reads again some time later; from L2 if the blocks of one SM have
            more of them together than its L1 holds.
        flight: Bytes in flight of a thread.
        instructions: Instructions of a thread, in total.
        chain: Cycles that a block waits for itself (barriers, shuffles, dependent steps).
        rounds: Number of dependent waits of a thread for memory.
        lines: 128-byte lines that the loads and stores of a warp touch, in total.
        registers: 32-bit registers of a thread.
        smem: Shared memory of a block, in bytes.
    """

    blocks: int
    threads: int
    moved: float
    again: float = 0.0
    kept: float = 0.0
    flight: float = 16.0
    instructions: float = 50.0
    chain: float = 0.0
    rounds: float = 1.0
    lines: float = 0.0
    registers: int = 32
    smem: int = 0

    def resident(self, arch: CudaArch) -> int:
        """Return the resident blocks of an SM (occupancy)."""
        warps = math.ceil(self.threads / arch.warp) * arch.warp
        most = min(arch.blocks_sm, arch.threads_sm // warps)
        most = min(most, arch.registers_sm // (warps * max(16, self.registers)))
        if self.smem:
            most = min(most, arch.smem_sm_bytes // (self.smem + 1024))
        return max(most, 0)

    def parts(self, arch: CudaArch) -> tuple[float, ...]:
        """Return cycles of memory, cached reads, issue, waits; waves. ``(inf,)`` if none fit."""
        resident = self.resident(arch)
        if not resident:
            return (math.inf,)
        fits = self.moved < 0.5 * arch.l2_bytes
        latency = _NEAR if fits else _FAR
        total = (arch.l2_bytes_cycle if fits else arch.dram_bytes_cycle) * _REACHED
        sms = min(self.blocks, arch.sms)
        here = min(resident, math.ceil(self.blocks / arch.sms))
        rate = min(total / sms, here * self.threads * self.flight / latency, _PORT)
        memory = self.moved / (rate * sms)
        cached = self.again / (_PORT * sms)
        cache = arch.smem_sm_bytes - resident * self.smem
        if here * self.kept > _CACHE * cache:
            memory += self.again / (arch.l2_bytes_cycle * _REACHED)
            cached = 0.0
        warps = math.ceil(self.threads / arch.warp)
        # The busiest SM issues for whole blocks.
        busiest = math.ceil(self.blocks / arch.sms)
        issue = busiest * warps * self.instructions / (arch.partitions * _ISSUE)
        issue = max(issue, busiest * _BLOCK / max(1.0, warps / 2.0), busiest * warps * self.lines)
        waves = math.ceil(self.blocks / (resident * arch.sms))
        issue = max(issue, waves * self.instructions * _ALONE)
        wait = latency * self.rounds + self.chain
        return memory, cached, issue, wait, float(waves)

    def cycles(self, arch: CudaArch) -> float:
        """Return the cycles from the launch of this kernel to the launch of the next."""
        found = self.parts(arch)
        if len(found) == 1:
            return math.inf
        memory, cached, issue, wait, waves = found
        # Only the first wave's wait is exposed; later ones hide behind other blocks.
        tail = wait * (1.0 + 0.15 * (waves - 1.0))
        # If all threads load at once and compute afterwards, the two do not overlap.
        apart = _APART + _ONCE / (waves * max(1.0, self.rounds))
        return LAUNCH + max(memory, issue, cached) + apart * min(memory, issue) + tail

"""Cost model of row reductions: throughput of blocks, memory and issue; latency of one warp."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.stream_cost import StreamCost


@dataclasses.dataclass(frozen=True)
class RowCost(StreamCost):
    """One row reduction, as its cost model sees it; ``instructions`` are of the elements only.

    Attributes:
        shuffles: Steps of warp shuffle reductions.
        cross_warps: Reductions over several warps.
        rereads: Passes that read the row again.
        in_shared: Whether shared memory holds the row.
        guards: Passes that find vectors in registers which were loaded under a condition.
        exposed_lines: 128-byte lines of the busiest SM that neither memory nor issue hides.
        phased: Whether the warps of a block load, compute and store together, between barriers.
    """

    shuffles: float = 0.0
    cross_warps: int = 0
    rereads: int = 0
    in_shared: bool = False
    guards: int = 0
    exposed_lines: float = 0.0
    phased: bool = False

    def parts(self, arch: CudaArch) -> tuple[float, ...]:
        """Return cycles of memory, issue, lines, launches, one warp, waits; waves.

        ``(inf,)`` if no block fits.
        """
        resident = self.resident(arch)
        if not resident:
            return (math.inf,)
        costs = arch.costs
        busiest = math.ceil(self.blocks / arch.sms)  # the busiest SM runs whole blocks
        warps = math.ceil(self.threads / arch.warp)
        waves = math.ceil(self.blocks / (resident * arch.sms))
        here = min(resident, busiest)
        instructions = costs.row_instructions + self.instructions
        issue = busiest * warps * instructions * costs.row_issue_slots / arch.partitions
        if self.phased:
            # Warps of one block issue together and wait together; further warps fill the gaps.
            issue *= 1.0 + costs.phase_stall_warps * arch.partitions / (here * warps)
        lines = busiest * warps * self.warp_lines * costs.row_line_cycles
        launches = (busiest - 1) * costs.row_block_cycles
        near = self.compulsory_bytes < costs.gemv_l2_resident_share * arch.l2_bytes
        wait = costs.row_l2_wait_cycles if near else costs.row_dram_wait_cycles
        warp = waves * (instructions * costs.row_instruction_cycles + wait * self.load_rounds)
        waits = self.shuffles * costs.row_shuffle_cycles
        waits += self.cross_warps * costs.row_cross_warp_cycles
        waits += (self.rereads + 0.5 * self.in_shared) * costs.reread_cycles
        waits *= 1.0 + costs.wave_tail_share * (waves - 1.0)
        waits += self.guards * costs.row_guard_cycles
        waits += self.exposed_lines * costs.reread_line_cycles
        memory = self._memory(arch, here, busiest, near)
        return memory, issue, lines, launches, warp, waits, float(waves)

    def cycles(self, arch: CudaArch) -> float:
        """Return the cycles from the launch of this kernel to the launch of the next."""
        found = self.parts(arch)
        if len(found) == 1:
            return math.inf
        *overlapping, warp, waits, waves = found
        # The phases of the only block of an SM follow each other: its barriers part them.
        is_alone = self.phased and waves > 1 and self.resident(arch) == 1
        power = 1.0 if is_alone else arch.costs.overlap_exponent
        overlapped = sum(c**power for c in overlapping) ** (1 / power)
        return arch.costs.row_launch_cycles + overlapped + warp + waits

    def _memory(self, arch: CudaArch, here: int, busiest: int, near: bool) -> float:
        """Return the cycles to move the rows once, and to read them again."""
        costs = arch.costs
        rate = arch.dram_bytes_cycle * costs.stream_bandwidth_share
        if near:
            rate = arch.l2_bytes_cycle * costs.row_l2_bandwidth_ratio
        own = self.compulsory_bytes * busiest / self.blocks / costs.sm_tile_bytes_per_cycle
        cached = costs.sm_l2_bytes_per_cycle * min(self.blocks, arch.sms)
        if here * self.block_reread_bytes > costs.l1_resident_share * arch.smem_sm_bytes:
            cached = rate
        return max(self.compulsory_bytes / rate, own) + self.reread_bytes / cached

"""Order of the tiles of causal attention: heads whose tiles follow each other."""

from __future__ import annotations

from tvmopt.device.cuda import CudaArch

# Tiles of a group of heads, per SM, with which the longest tiles first balance the SMs.
_WAVES = 2


def heads_of_group(heads: int, bytes_of_all: int, across: int, arch: CudaArch) -> int:
    """Return the heads (of all batches) whose tiles follow each other in LPT order.

    With no more heads than SMs, neighbouring SMs read the K and V of one head at the same time, and
    one group balances best. Otherwise each length of tiles would read K and V of all heads from
    DRAM again. A group's K and V take half of L2 at most, unless it has too few tiles.

    Args:
        heads: Heads of all batches.
        bytes_of_all: Bytes of their K and V.
        across: Tiles of queries of a head.
        arch: The GPU.
    """
    if heads <= arch.sms:
        return heads
    fit = heads * (arch.l2_bytes // 2) // bytes_of_all
    size = min(heads, max(1, fit, -(-_WAVES * arch.sms // across)))
    return -(-heads // -(-heads // size))

"""Cost of an epilogue that broadcasts the output of a reduction: a loop nest outside the tile.

Squeeze-and-excite scales a feature map of 3 x 96 x 88 by a convolution's output of 1 x 1 x 88::

    for c: for k: acc[c] += A[k] * B[k, c]                      # register tile
    for y, x in T.parallel(...): for c: Y[y, x, c] = X[y, x, c] * sigmoid(acc[c])

The cost models of tiles count an epilogue of the tile's size. All candidates of a function have the
same nests after the reduction, so that these do not change the order of the candidates.
"""

from __future__ import annotations

from tvm import tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import BlockFacts, all_facts, block_facts
from tvmopt.kernels.cpu.common.cost import stream_cycles
from tvmopt.kernels.cpu.common.nest import only_reduction
from tvmopt.kernels.cpu.common.stage import busy_cores
from tvmopt.kernels.workload import Refusal, Workload, static_bytes


def epilogue_nest_cycles(workload: Workload, arch: CpuArch) -> float:
    """Return the predicted cycles of the nests that broadcast the output of the only reduction.

    Each costs what it would cost as a separate function (memory-bound roofline), parallel where
    :func:`~tvmopt.kernels.cpu.common.stage.parallelize` makes it so.

    Args:
        workload: A function that can be scheduled.
        arch: The CPU.

    Returns:
        Cycles; 0 if each epilogue has the size of the reduction's output.
    """
    return sum(
        stream_cycles(_operand_bytes(facts), busy_cores(facts.work, arch), arch)
        for facts in workload.analysed(_broadcasting_nests) or ()
    )


def _broadcasting_nests(func: tirx.PrimFunc) -> tuple[BlockFacts, ...]:
    """Return the injective blocks after the only reduction that write more elements than it."""
    found = only_reduction(func)
    if isinstance(found, Refusal):
        return ()
    sch, anchor = found
    reduction = block_facts(sch, anchor)
    outputs = reduction.work // reduction.reduced
    computed = [reduction.write.buffer]
    nests = []
    for facts in all_facts(sch):
        if any(read.buffer.same_as(buffer) for read in facts.reads for buffer in computed):
            computed.append(facts.write.buffer)
            if facts.work > outputs:
                nests.append(facts)
    return tuple(nests)


def _operand_bytes(facts: BlockFacts) -> int:
    """Return the bytes of all buffers that a block reads or writes, each counted once."""
    buffers: list[tirx.Buffer] = []
    for access in (facts.write, *facts.reads):
        if not any(access.buffer.same_as(buffer) for buffer in buffers):
            buffers.append(access.buffer)
    return static_bytes(buffers)

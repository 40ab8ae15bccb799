"""What register tiles prefetch; :mod:`tvmopt.kernels.cpu.passes.prefetch` inserts prefetches."""

from __future__ import annotations

import math

from tvmopt.device.cpu import CACHE_LINE_BYTES, CpuArch
from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.cost import FILL

_BYTES = 2048
# A reduction step that loads one vector is too short to pay for a prefetch instruction.
_LEAST_VECTORS = 2
# Cycles of the reduction per cache line of the output, below which stores that miss L2 stall it.
# Fit to networks on a Zen 5: 0.55 to 0.85 of the time below 14, 1.02 to 1.08 from 16.
_CYCLES_PER_LINE = 15.0


def bytes_ahead(rows: int, vectors: int, arch: CpuArch) -> int:
    """Return the prefetch distance in bytes for a register tile; 0 is no prefetch.

    For some CPUs (``znver3``, ``alderlake``) LLVM unrolls a reduction without a prefetch by two.
    With the loads of both steps in registers, 16 registers do not hold the accumulators of 8 and
    more rows: it stores and loads them in every step, which took 1.4 to 1.6 times as long on a
    Zen 3. A prefetch keeps it from that.

    Args:
        rows: Rows of the tile.
        vectors: Vectors of a row, which a reduction step loads.
        arch: The CPU.
    """
    unrolled = 2 * rows + vectors
    spills = unrolled > arch.vector_registers and not arch.broadcasts_in_fma
    wanted = vectors >= _LEAST_VECTORS or spills
    return _BYTES if wanted and arch.isa == "x86_64" else 0


def epilogue_stalls(form: ContractionForm, arch: CpuArch) -> bool:
    """Return whether the stores of an epilogue miss L2 faster than the reduction hides.

    Args:
        form: The contraction; its output is the one of the epilogue block.
        arch: The CPU.
    """
    output = block_facts(form.sch, form.epilogue).write.buffer
    size = math.prod(map(int, output.shape)) * output.dtype.itemsize
    steps = form.facts.reduced / form.depth(arch) / arch.fma_ports
    vectors = CACHE_LINE_BYTES / output.dtype.itemsize / arch.lanes(form.facts.dtype)
    return size / arch.cores > FILL * arch.l2_bytes and steps * vectors < _CYCLES_PER_LINE

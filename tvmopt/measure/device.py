"""Choose the measurer of a device: local CPU, board, or local GPU."""

from __future__ import annotations

from pathlib import Path

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.measure.cpu_hints import CpuMeasurer
from tvmopt.measure.cuda_hints import CudaMeasurer
from tvmopt.measure.hints import HintMeasurer
from tvmopt.remote import Board


def measurer_of(
    arch: CpuArch | CudaArch,
    scratch: Path,
    threads: int = 0,
    seed: int = 0,
    builders: int = 0,
    board: Board | None = None,
) -> HintMeasurer:
    """Return a measurer for ``arch``, to use as a context manager.

    Args:
        arch: Device that candidates run on.
        scratch: Directory for libraries and logs.
        threads: Number of threads of a CPU candidate; 0 means all cores of ``arch``.
        seed: Seed of the random inputs.
        builders: Number of worker processes that build; 0 means one per core.
        board: Board with the CPU; None for the local machine.
    """
    if isinstance(arch, CudaArch):
        return CudaMeasurer(arch, scratch, seed, builders)
    return CpuMeasurer(arch.to_tvm(), threads or arch.cores, scratch, seed, builders, board=board)

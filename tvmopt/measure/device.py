"""Who measures hints on a device: this machine's CPU, a board, or this machine's GPU."""

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
    """A measurer for ``arch``, to be used as a context manager.

    Args:
        arch: What candidates run on.
        scratch: Directory for libraries and logs.
        threads: Threads of a candidate on a CPU; 0 is all of ``arch``.
        seed: Seed of the random inputs.
        builders: Worker processes that build; 0 is one a core.
        board: Where the CPU is; None for this machine.
    """
    if isinstance(arch, CudaArch):
        return CudaMeasurer(arch, scratch, seed, builders)
    return CpuMeasurer(arch.to_tvm(), threads or arch.cores, scratch, seed, builders, board=board)

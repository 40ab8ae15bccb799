"""Whether the attention kernel is faster than separate GEMMs and softmax."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.attention import AttentionProblem


def pays(problem: AttentionProblem, arch: CpuArch) -> bool:
    """Return whether the kernel is predicted to be faster on ``arch``."""
    return problem.dtype == "float32"

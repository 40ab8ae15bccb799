"""Make a function's kernel by the policy's first choice: no GPU needed, nothing measured."""

from __future__ import annotations

from tvm import tirx

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.apply import NotApplicable
from tvmopt.schedule.gpu.apply import gpu_kernel
from tvmopt.schedule.gpu.hint import GpuHint

from .cuda import CudaPolicy

# Configurations that are tried before a function is given up.
_MOST_REFUSALS = 16


def first_kernel(func: tirx.PrimFunc, arch: CudaArch) -> tuple[tirx.PrimFunc, GpuHint] | str:
    """The kernel of ``func`` by the most promising configuration that its template takes.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The GPU.

    Returns:
        The kernel and its configuration; or why there is none.
    """
    policy = CudaPolicy(func, arch)
    refusals: list[str] = []
    for ranked in policy.ranked[:_MOST_REFUSALS]:
        try:
            return gpu_kernel(func, ranked.hint), ranked.hint
        except NotApplicable as error:
            refusals.append(str(error))
    return policy.reason or "; ".join(dict.fromkeys(refusals))

"""Which configurations are worth trying: facts about a function and a device -> ranked hints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cpu.first_choice import schedule_function, schedule_module
from tvmopt.kernels.cpu.policy import CpuPolicy, Scheduled

if TYPE_CHECKING:
    from tvmopt.kernels.cuda.policy import CudaPolicy
    from tvmopt.kernels.cuda.simt_policy import SimtPolicy

__all__ = ["DefaultPolicy", "Scheduled", "policy_of", "schedule_function", "schedule_module"]


@overload
def DefaultPolicy(func: Any, arch: CpuArch) -> CpuPolicy: ...


@overload
def DefaultPolicy(func: Any, arch: CudaArch) -> SimtPolicy: ...


def DefaultPolicy(func: Any, arch: CpuArch | CudaArch) -> CpuPolicy | SimtPolicy:  # noqa: N802
    """Ranks the configurations of one function; on a GPU those of plain threads.

    The name is the fast dlight proposal's (TVM community forum, 2024), where
    :class:`~tvmopt.kernels.cuda.tensor_core_policy.TensorCorePolicy` stands beside it.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: What to schedule for.
    """
    if isinstance(arch, CpuArch):
        return CpuPolicy(func, arch)
    from tvmopt.kernels.cuda.simt_policy import SimtPolicy

    return SimtPolicy(func, arch)


@overload
def policy_of(func: Any, arch: CpuArch) -> CpuPolicy: ...


@overload
def policy_of(func: Any, arch: CudaArch) -> CudaPolicy: ...


def policy_of(func: Any, arch: CpuArch | CudaArch) -> CpuPolicy | CudaPolicy:
    """Ranks the configurations of one function over every template that the device has.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: What to schedule for.
    """
    if isinstance(arch, CpuArch):
        return CpuPolicy(func, arch)
    from tvmopt.kernels.cuda.policy import CudaPolicy

    return CudaPolicy(func, arch)

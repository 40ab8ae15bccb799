"""Backend: how kernels of CPUs and of GPUs differ, apart from their families."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from tvm import IRModule, s_tir, tirx
from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cpu.common.epilogue_nests import epilogue_nest_cycles
from tvmopt.kernels.cpu.common.unmodelled import argument_cycles, untiled_cycles
from tvmopt.kernels.cpu.finish import finish as finish_cpu
from tvmopt.kernels.cpu.passes.bfloat16_rounding import annotate_rounding
from tvmopt.kernels.cuda.default_kernels import default_kernels
from tvmopt.kernels.cuda.finish import finish as finish_cuda
from tvmopt.kernels.cuda.toolchain.dependent_launch import OVERLAPS
from tvmopt.kernels.scheduled import SCHEDULED_ATTR
from tvmopt.kernels.workload import Refusal, Workload

#: Result of a family's ``emit``.
Emitted: TypeAlias = "s_tir.Schedule | tirx.PrimFunc"


@dataclasses.dataclass(frozen=True)
class Backend:
    """One kind of device.

    Attributes:
        refusal: Returns why a workload cannot be scheduled; None when it can.
        lists_refusals: Whether the reason of a function that no family matches names the reason of
            each family.
        tolerates_errors: Whether a function whose kernel raises is left unscheduled.
        names_symbols: Whether a kernel needs its name as global symbol.
        schedules_in_forks: Whether forks of a process may schedule functions.
        argument_cycles: Predicts the cycles of a workload that no family matches.
        untiled_cycles: Predicts the least cycles of a workload that no modelled family matches.
        epilogue_nest_cycles: Predicts the cycles of a workload's loop nests that the cost models of
            all families leave out.
        annotate: Annotates an emitted schedule for the device's passes.
        finish: Returns an emitted schedule or function after the device's passes, given the
            original function.
        schedule_unmatched: Schedules the functions of a module that no family matches.
        has_traces: Whether tuning records hold schedule traces; they hold configurations only
            otherwise.
    """

    refusal: Callable[[Workload], Refusal | None]
    lists_refusals: bool
    tolerates_errors: bool
    names_symbols: bool
    schedules_in_forks: bool
    argument_cycles: Callable[[Workload, Any], float]
    untiled_cycles: Callable[[Workload, Any], float]
    epilogue_nest_cycles: Callable[[Workload, Any], float]
    annotate: Callable[[Any, Any], None]
    finish: Callable[[Emitted, tirx.PrimFunc], tirx.PrimFunc]
    schedule_unmatched: Callable[[IRModule, Any], IRModule]
    has_traces: bool


def _finished_for_cuda(made: Emitted, func: tirx.PrimFunc) -> tirx.PrimFunc:
    done = finish_cuda(made.mod["main"], func) if isinstance(made, s_tir.Schedule) else made
    return done.with_attr(SCHEDULED_ATTR, True).with_attr(OVERLAPS, True)


_BACKENDS = {
    CpuArch.kind: Backend(
        refusal=lambda workload: workload.refusal,
        lists_refusals=True,
        tolerates_errors=False,
        names_symbols=False,
        schedules_in_forks=True,
        argument_cycles=argument_cycles,
        untiled_cycles=untiled_cycles,
        epilogue_nest_cycles=epilogue_nest_cycles,
        annotate=annotate_rounding,
        finish=lambda made, func: finish_cpu(made.mod["main"], func),
        schedule_unmatched=lambda mod, arch: mod,
        has_traces=True,
    ),
    CudaArch.kind: Backend(
        refusal=lambda workload: workload.refusal_of_kernel,
        lists_refusals=False,
        tolerates_errors=True,
        names_symbols=True,
        schedules_in_forks=False,
        argument_cycles=lambda workload, arch: 0.0,
        untiled_cycles=lambda workload, arch: 0.0,
        epilogue_nest_cycles=lambda workload, arch: 0.0,
        annotate=lambda made, arch: None,
        finish=_finished_for_cuda,
        schedule_unmatched=default_kernels,
        has_traces=False,
    ),
}


def backend_of(device: Arch | Target) -> Backend:
    """Return the backend of a device, or of the kind of a target."""
    return _BACKENDS[device.kind if isinstance(device, Arch) else device.kind.name]

"""Apply a hint: the GPU template that it names, and the register of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import last_line
from tvmopt.kernels.cpu.apply import SCHEDULED_ATTR, NotApplicable
from tvmopt.kernels.cuda.block_reduction.schedule import GpuBlockReduction
from tvmopt.kernels.cuda.column_reduction.column_walk import GpuColumnWalk
from tvmopt.kernels.cuda.column_reduction.schedule import GpuColumnReduction
from tvmopt.kernels.cuda.common.own_parts import drop_threads
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.elementwise.copy import GpuCopy
from tvmopt.kernels.cuda.elementwise.schedule import GpuElementwise
from tvmopt.kernels.cuda.elementwise.transpose import GpuTranspose
from tvmopt.kernels.cuda.gemv.schedule import GpuGemv
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.template import HOPPER_CONV, HOPPER_GEMM
from tvmopt.kernels.cuda.int4.schedule import GpuInt4
from tvmopt.kernels.cuda.int4.unpack import rewrite_int4
from tvmopt.kernels.cuda.mma.schedule import MmaMatmul
from tvmopt.kernels.cuda.pipeline import PIPELINE
from tvmopt.kernels.cuda.row_reduction.schedule import GpuRowReduction
from tvmopt.kernels.cuda.simt.schedule import SimtMatmul
from tvmopt.kernels.cuda.template import GpuTemplate
from tvmopt.kernels.cuda.toolchain.dependent_launch import OVERLAPS
from tvmopt.kernels.cuda.window.schedule import GpuFallback, GpuWindow
from tvmopt.kernels.cuda.winograd.schedule import GpuWinogradData, GpuWinogradOut

#: Every GPU template, by name.
GPU_TEMPLATES: dict[str, GpuTemplate] = {
    template.name: template
    for template in (
        GpuElementwise(),
        GpuCopy(),
        GpuTranspose(),
        GpuRowReduction(),
        GpuColumnReduction(),
        GpuColumnWalk(),
        GpuBlockReduction(),
        GpuGemv(),
        GpuInt4(),
        GpuWindow(),
        GpuWinogradData(),
        GpuWinogradOut(),
        GpuFallback(),
        SimtMatmul(),
        MmaMatmul(),
        HOPPER_GEMM,
        HOPPER_CONV,
    )
}


def finish_gpu(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function ready to be compiled, its attributes kept.

    Args:
        scheduled: ``func`` under a schedule.
        func: The function before, whose attributes are kept.
    """
    result = rewrite_int4(drop_threads(scheduled))
    for key, value in (func.attrs or {}).items():
        result = result.with_attr(key, value)
    return result.with_attr(SCHEDULED_ATTR, True)


def apply_gpu_hint(func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | tirx.PrimFunc:
    """Make the kernel of ``func`` that ``hint`` says.

    Raises:
        NotApplicable: When the template does not take the function, or TVM refuses a step.
    """
    try:
        result = GPU_TEMPLATES[hint.template].apply(func, hint)
    except (ScheduleError, InternalError) as error:
        raise NotApplicable(f"{hint.template} refused: {last_line(error, None)}") from error
    if result is None:
        raise NotApplicable(f"{hint.template} does not fit")
    return result


def gpu_kernel(func: tirx.PrimFunc, hint: CudaHint) -> tirx.PrimFunc:
    """The kernel of ``func`` that ``hint`` says, ready for :func:`build_kernels`.

    Raises:
        NotApplicable: As :func:`apply_gpu_hint`.
    """
    made = apply_gpu_hint(func, hint)
    kernel = finish_gpu(made.mod["main"], func) if isinstance(made, s_tir.Schedule) else made
    return kernel.with_attr(SCHEDULED_ATTR, True).with_attr(OVERLAPS, True)


def build_kernels(functions: Mapping[str, tirx.PrimFunc], arch: CudaArch) -> Any:
    """Compile kernels, scheduled or generated.

    Args:
        functions: The kernels, by the names that they get.
        arch: The GPU.

    Returns:
        A ``tvm.runtime.Module``.
    """
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    with tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.tirx.build(tvm.IRModule(named), target=arch.to_tvm(), pipeline=PIPELINE)

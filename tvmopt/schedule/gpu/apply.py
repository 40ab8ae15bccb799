"""Apply a hint: the GPU template that it names, and the register of them."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.schedule.apply import SCHEDULED_ATTR, NotApplicable

from .base import GpuTemplate
from .column_reduction import GpuColumnReduction
from .column_walk import GpuColumnWalk
from .elementwise import GpuElementwise
from .gemv import GpuGemv
from .hint import GpuHint
from .int4 import rewrite_int4
from .row_reduction import GpuRowReduction
from .transpose import GpuTranspose
from .window import GpuFallback, GpuWindow

#: Every GPU template, by name.
GPU_TEMPLATES: dict[str, GpuTemplate] = {
    template.name: template
    for template in (
        GpuElementwise(),
        GpuTranspose(),
        GpuRowReduction(),
        GpuColumnReduction(),
        GpuColumnWalk(),
        GpuGemv(),
        GpuWindow(),
        GpuFallback(),
    )
}


def finish_gpu(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function ready to be compiled, its attributes kept.

    Args:
        scheduled: ``func`` under a schedule.
        func: The function before, whose attributes are kept.
    """
    result = rewrite_int4(scheduled)
    for key, value in (func.attrs or {}).items():
        result = result.with_attr(key, value)
    return result.with_attr(SCHEDULED_ATTR, True)


def apply_gpu_hint(func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | tirx.PrimFunc:
    """Make the kernel of ``func`` that ``hint`` says.

    Raises:
        NotApplicable: When the template does not take the function, or TVM refuses a step.
    """
    try:
        result = GPU_TEMPLATES[hint.template].apply(func, hint)
    except (ScheduleError, InternalError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise NotApplicable(f"{hint.template} refused: {reason}") from error
    if result is None:
        raise NotApplicable(f"{hint.template} does not fit")
    return result

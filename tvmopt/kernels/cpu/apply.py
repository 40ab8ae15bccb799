"""Apply a hint: the template that it names, and what every scheduled function needs besides."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.errors import last_line
from tvmopt.kernels.cpu.column_reduction.schedule import ColumnReduction
from tvmopt.kernels.cpu.contraction.schedule import Contraction
from tvmopt.kernels.cpu.elementwise.schedule import Elementwise
from tvmopt.kernels.cpu.fallback.schedule import Fallback
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.intrinsics import with_tile_configuration
from tvmopt.kernels.cpu.intrinsics.choose import with_intrinsic_functions
from tvmopt.kernels.cpu.matrix_tile.schedule import MatrixTile
from tvmopt.kernels.cpu.passes.bfloat16_bits import keep_bfloat16_bits
from tvmopt.kernels.cpu.passes.bfloat16_rounding import annotate_rounding, round_natively
from tvmopt.kernels.cpu.passes.prefetch import insert_prefetches
from tvmopt.kernels.cpu.passes.requantise import rewrite_requantise
from tvmopt.kernels.cpu.passes.vector_math import rewrite_math
from tvmopt.kernels.cpu.register_tile.schedule import RegisterTile
from tvmopt.kernels.cpu.row_reduction.schedule import RowReduction
from tvmopt.kernels.cpu.strided_window.schedule import StridedWindow
from tvmopt.kernels.cpu.template import Template
from tvmopt.kernels.cpu.window.schedule import Window
from tvmopt.kernels.cpu.winograd.schedule import Winograd

SCHEDULED_ATTR = "tirx.is_scheduled"

#: Every template, by name.
TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        Elementwise(),
        RowReduction(),
        ColumnReduction(),
        MatrixTile(),
        RegisterTile(),
        Window(),
        StridedWindow(),
        Winograd(),
        Contraction(),
        Contraction(pack=False),
        Fallback(),
    )
}


class NotApplicable(Exception):  # noqa: N818  # an answer, not an error
    """A hint does not fit a function; the message says why."""


def apply_hint(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule:
    """Schedule ``func`` as ``hint`` says.

    Raises:
        NotApplicable: When the template does not take the function, or TVM refuses a step.
    """
    try:
        schedule = TEMPLATES[hint.template].apply(func, hint)
    except (ScheduleError, InternalError) as error:
        raise NotApplicable(f"{hint.template} refused: {last_line(error, None)}") from error
    if schedule is None:
        raise NotApplicable(f"{hint.template} does not fit")
    annotate_rounding(schedule, hint.arch)
    return schedule


def finish(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function ready to be compiled, its attributes kept.

    It has prefetches, vector math, and the functions that tensor intrinsics call.

    Args:
        scheduled: ``func`` under a schedule.
        func: The function before, whose attributes are kept.
    """
    result = round_natively(insert_prefetches(scheduled))
    result = keep_bfloat16_bits(result)
    result = rewrite_math(rewrite_requantise(result))
    result = with_tile_configuration(with_intrinsic_functions(result))
    for key, value in (func.attrs or {}).items():
        result = result.with_attr(key, value)
    return result.with_attr(SCHEDULED_ATTR, True)

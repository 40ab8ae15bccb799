"""Schedule a function, or every function of a module, with the first rule that fits."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import IRModule, tirx
from tvm.error import InternalError
from tvm.ir import GlobalVar
from tvm.s_tir import ScheduleError

from tvmopt.arch.cpu import CpuArch

from .analysis import why_not_schedulable
from .base import Scheduled, ScheduleRule
from .contraction import Contraction
from .elementwise import Elementwise
from .fallback import Fallback
from .row_reduction import RowReduction
from .vector_math import rewrite_math

#: The policy: rules are asked in this order, and the first schedule is taken.
DEFAULT_RULES: tuple[ScheduleRule, ...] = (
    Elementwise(),
    RowReduction(),
    Contraction(),
    Contraction(pack=False),
    Fallback(),
)

SCHEDULED_ATTR = "tirx.is_scheduled"


def schedule_function(
    func: tirx.PrimFunc, arch: CpuArch, rules: Sequence[ScheduleRule] = DEFAULT_RULES
) -> Scheduled:
    """Schedule one function with the first of ``rules`` that fits it.

    Args:
        func: A TensorIR function, as FuseTIR leaves it. It is not changed.
        arch: The CPU to schedule for.
        rules: Rules in order of preference.

    Returns:
        The function with its attributes kept and ``tirx.is_scheduled`` set, its exp, tanh, erf and
        sigmoid rewritten by :func:`.vector_math.rewrite_math`, and the name of the rule that
        served. A function that no rule takes comes back as it was, with the reason.
    """
    reason = why_not_schedulable(func)
    if reason is not None:
        return Scheduled(func, f"unscheduled: {reason}")
    refusals: list[str] = []
    for rule in rules:
        try:
            schedule = rule.apply(func, arch)
        except (ScheduleError, InternalError) as error:
            refusals.append(f"{rule.name} refused: {_first_line(error)}")
            continue
        if schedule is not None:
            scheduled = rewrite_math(schedule.mod["main"])
            for key, value in (func.attrs or {}).items():
                scheduled = scheduled.with_attr(key, value)
            return Scheduled(scheduled.with_attr(SCHEDULED_ATTR, True), rule.name)
    return Scheduled(func, f"unscheduled: {'; '.join(refusals) or 'no rule fits'}")


def schedule_module(
    mod: IRModule, arch: CpuArch, rules: Sequence[ScheduleRule] = DEFAULT_RULES
) -> tuple[IRModule, dict[str, str]]:
    """Schedule every PrimFunc of ``mod`` that is not scheduled yet.

    Args:
        mod: A module after LegalizeOps, FuseOps and FuseTIR. It is not changed.
        arch: The CPU to schedule for.
        rules: Rules in order of preference.

    Returns:
        The new module, and for each function looked at the name of its rule or, beginning with
        ``"unscheduled: "``, why it was left alone. Relax functions and functions already marked
        ``tirx.is_scheduled`` are passed through and not listed.
    """
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or func.attrs.get(SCHEDULED_ATTR, False):
            continue
        result = schedule_function(func, arch, rules)
        served[var.name_hint] = result.rule
        if not result.rule.startswith("unscheduled"):
            updates[var] = result.func
    out = mod.clone()
    out.update(IRModule(updates))
    return out, served


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

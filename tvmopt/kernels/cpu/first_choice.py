"""Schedule functions with the policy's first choice: no measuring, the same result every time."""

from __future__ import annotations

import collections

from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.apply import SCHEDULED_ATTR, NotApplicable, apply_hint, finish
from tvmopt.kernels.cpu.policy import CpuPolicy, Scheduled

# Configurations of one template that are tried before the next template is.
_MOST_REFUSALS = 8


def schedule_function(func: tirx.PrimFunc, arch: CpuArch) -> Scheduled:
    """Schedule one function with the first configuration that its template takes.

    Args:
        func: A TensorIR function, as FuseTIR leaves it. It is not changed.
        arch: The CPU to schedule for.

    Returns:
        The function with its attributes kept and ``tirx.is_scheduled`` set, its exp, tanh, erf and
        sigmoid in vector form. A function that no template takes comes back as it was, with the
        reason.
    """
    policy = CpuPolicy(func, arch)
    if policy.reason is not None:
        return Scheduled(func, f"unscheduled: {policy.reason}")
    refusals: collections.Counter[str] = collections.Counter()
    reasons: dict[str, str] = {}
    for ranked in policy.ranked:
        hint = ranked.hint
        if refusals[hint.template] >= _MOST_REFUSALS:
            continue
        try:
            schedule = apply_hint(func, hint)
        except NotApplicable as error:
            refusals[hint.template] += 1
            reasons[hint.template] = str(error)
            continue
        return Scheduled(finish(schedule.mod["main"], func), hint.template, schedule, hint)
    return Scheduled(func, f"unscheduled: {'; '.join(reasons.values()) or 'no template fits'}")


def schedule_module(mod: IRModule, arch: CpuArch) -> tuple[IRModule, dict[str, str]]:
    """Schedule every PrimFunc of ``mod`` that is not scheduled yet.

    Args:
        mod: A module after LegalizeOps, FuseOps and FuseTIR. It is not changed.
        arch: The CPU to schedule for.

    Returns:
        The new module, and for each function looked at the name of its template or, beginning with
        ``"unscheduled: "``, why it was left alone. Relax functions and functions already marked
        ``tirx.is_scheduled`` are passed through and not listed.
    """
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or func.attrs.get(SCHEDULED_ATTR, False):
            continue
        result = schedule_function(func, arch)
        served[var.name_hint] = result.rule
        if result.hint is not None:
            updates[var] = result.func
    out = mod.clone()
    out.update(IRModule(updates))
    return out, served

"""Schedule functions with the cost model's top-1 candidate; needs no device and no measurement."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Hashable

from tvm import IRModule, s_tir, tirx
from tvm.ir import GlobalVar

from tvmopt.device.arch import Arch
from tvmopt.errors import last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.emit import SCHEDULED_ATTR, NotApplicable, emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.structure import Structure

# Failed configurations of one family after which the family's remaining ones are skipped.
_MOST_REFUSALS = 8
# Scheduled functions that are kept; a large network has a hundred distinct functions.
_KEPT = 512


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """Result of scheduling one function.

    Attributes:
        func: The scheduled function, or the input function; attributes are kept.
        rule: Name of the family, or ``"unscheduled: <reason>"``.
        schedule: The schedule with its trace; None when no family matched or the kernel is
            generated.
        hint: The configuration; None when no family matched.
    """

    func: tirx.PrimFunc
    rule: str
    schedule: s_tir.Schedule | None = None
    hint: Hint | None = None


def schedule_function(func: tirx.PrimFunc, arch: Arch) -> Scheduled:
    """Schedule one function with the highest-ranked configuration that can be emitted.

    Functions of equal structure are scheduled once: a network compiled in two layouts, or with its
    fallback, has many.

    Args:
        func: A TensorIR function after FuseTIR. It is not changed.
        arch: The target device.

    Returns:
        The function, ready to be compiled. A function that no family matches is returned unchanged,
        with the reason.
    """
    known = arch.cost_parameters, *by_name().items()
    return _scheduled(Structure(func, None), arch, known)


@functools.lru_cache(maxsize=_KEPT)
def _scheduled(
    structure: Structure[None],
    arch: Arch,
    _known: Hashable,  # part of the key: what the candidates depend on beside function and device
) -> Scheduled:
    func = structure.func
    policy = policy_of(func, arch)
    reasons: dict[str, str] = {}
    refusals: collections.Counter[str] = collections.Counter()
    for ranked in policy.ranked:
        hint = ranked.hint
        if refusals[hint.template] >= _MOST_REFUSALS:
            continue
        try:
            made = emit(func, hint)
        except NotApplicable as error:
            refusals[hint.template] += 1
            reasons[hint.template] = str(error)
            continue
        schedule = made if isinstance(made, s_tir.Schedule) else None
        kernel = backend_of(arch).finish(made, func)
        return Scheduled(kernel, hint.template, schedule, hint)
    return Scheduled(func, f"unscheduled: {'; '.join(reasons.values()) or policy.reason}")


def schedule_module(mod: IRModule, arch: Arch) -> tuple[IRModule, dict[str, str]]:
    """Schedule every PrimFunc of ``mod`` that is not scheduled yet.

    Args:
        mod: A module after LegalizeOps, FuseOps and FuseTIR. It is not changed.
        arch: The target device.

    Returns:
        The new module, and a map from each visited function to its family's name or to
        ``"unscheduled: <reason>"``. On a CPU an unscheduled function stays unchanged; on a GPU it
        gets TVM's default schedule. Relax functions and functions with the attribute
        ``tirx.is_scheduled`` pass through and are not listed.
    """
    backend = backend_of(arch)
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    left: dict[GlobalVar, tirx.PrimFunc] = {}
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or func.attrs.get(SCHEDULED_ATTR, False):
            continue
        try:
            result = schedule_function(func, arch)
        except Exception as error:  # a bug in one kernel must not fail the whole network
            if not backend.tolerates_errors:
                raise
            result = Scheduled(func, f"unscheduled: {type(error).__name__}: {last_line(error)}")
        served[var.name_hint] = result.rule
        if result.hint is None:
            left[var] = func
        elif backend.names_symbols:
            updates[var] = result.func.with_attr("global_symbol", var.name_hint)
        else:
            updates[var] = result.func
    out = mod.clone()
    out.update(IRModule(updates))
    if left:
        out.update(backend.schedule_unmatched(IRModule(left), arch))
    return out, served

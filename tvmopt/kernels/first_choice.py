"""Schedule functions with the cost model's top-1 candidate; needs no device and no measurement."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Hashable

from tvm import s_tir, tirx

from tvmopt.device.arch import Arch
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.structure import Structure

# Failed configurations of one family after which the family's remaining ones are skipped.
_MOST_REFUSALS = 8
#: Scheduled functions that are kept; a large network has a hundred distinct functions.
KEPT = 512
#: What the schedule of a function depends on, see :func:`schedule_key`.
ScheduleKey = tuple[Structure[None], Arch, Hashable]


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
    return _scheduled(*schedule_key(func, arch))


def schedule_key(func: tirx.PrimFunc, arch: Arch) -> ScheduleKey:
    """Return a key that is equal for functions with the same schedule: structure and device.

    Args:
        func: As of :func:`schedule_function`.
        arch: The target device.
    """
    return Structure(func, None), arch, (arch.cost_parameters, *by_name().items())


@functools.lru_cache(maxsize=KEPT)
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

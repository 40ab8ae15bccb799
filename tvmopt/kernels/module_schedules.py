"""Schedule the functions of a module; forks of this process share the functions of a CPU."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt import forked
from tvmopt.device.arch import Arch
from tvmopt.errors import last_line
from tvmopt.kernels.backend import Backend, backend_of
from tvmopt.kernels.emit import SCHEDULED_ATTR
from tvmopt.kernels.first_choice import KEPT, ScheduleKey, schedule_function, schedule_key
from tvmopt.kernels.kept_results import KeptResults
from tvmopt.kernels.saved import load_saved
from tvmopt.kernels.structure import Structure

# Fewest functions that are worth a fork: each takes about 60 ms, and a fork with its result 100.
_WORTH_A_FORK = 8


@dataclasses.dataclass(frozen=True)
class _ScheduledFunction:
    """A function after scheduling.

    Attributes:
        func: The scheduled function, or the input function; attributes are kept.
        rule: As of :class:`~tvmopt.kernels.first_choice.Scheduled`.
        is_scheduled: Whether a family matched.
    """

    func: tirx.PrimFunc
    rule: str
    is_scheduled: bool


# The cache of schedule_function lacks what forks have scheduled.
_kernels: collections.OrderedDict[ScheduleKey, _ScheduledFunction] = collections.OrderedDict()


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
    wanted = {
        var: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not func.attrs.get(SCHEDULED_ATTR, False)
    }
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    left: dict[GlobalVar, tirx.PrimFunc] = {}
    kernels = _scheduled(list(wanted.values()), arch, backend)
    for (var, func), kernel in zip(wanted.items(), kernels, strict=True):
        served[var.name_hint] = kernel.rule
        if not kernel.is_scheduled:
            left[var] = func
        elif backend.names_symbols:
            updates[var] = kernel.func.with_attr("global_symbol", var.name_hint)
        else:
            updates[var] = kernel.func
    out = mod.clone()
    out.update(IRModule(updates))
    if left:
        out.update(backend.schedule_unmatched(IRModule(left), arch))
    return out, served


def _scheduled(
    funcs: Sequence[tirx.PrimFunc], arch: Arch, backend: Backend
) -> list[_ScheduledFunction]:
    """Return the kernel of each function; forks of this process make those that are not kept."""
    if not backend.schedules_in_forks:
        return [_first(func, arch, backend) for func in funcs]
    numbers: dict[ScheduleKey, int] = {}
    order = [numbers.setdefault(schedule_key(func, arch), len(numbers)) for func in funcs]
    keys = list(numbers)
    kept = KeptResults("schedules", arch, arch.cost_parameters)
    known = {n: kernel for n, key in enumerate(keys) if (kernel := _known(key, kept))}
    missing = [n for n in range(len(keys)) if n not in known]
    made = _made([keys[n][0] for n in missing], arch, backend, kept)
    known |= zip(missing, made, strict=True)
    _kernels.update((keys[n], kernel) for n, kernel in known.items())
    while len(_kernels) > KEPT:
        _kernels.popitem(last=False)
    return [known[n] for n in order]


def _known(key: ScheduleKey, kept: KeptResults) -> _ScheduledFunction | None:
    if (known := _kernels.get(key)) is not None:
        return known
    found = kept.find(key[0])
    return None if found is None else _unpacked(found)


def _made(
    structures: Sequence[Structure[None]], arch: Arch, backend: Backend, kept: KeptResults
) -> list[_ScheduledFunction]:
    """Schedule functions, in forks where that pays."""

    def packed(structure: Structure[None]) -> list[Any]:
        kernel = _first(structure.func, arch, backend)
        result = [tvm.ir.save_json(kernel.func), kernel.rule, kernel.is_scheduled]
        kept.keep(structure, result)
        return result

    if len(structures) < _WORTH_A_FORK or not forked.may_fork():
        return [_unpacked(packed(structure)) for structure in structures]
    return [_unpacked(result) for result in forked.compute_all(packed, structures)]


def _unpacked(result: Sequence[Any]) -> _ScheduledFunction:
    text, *facts = result
    return _ScheduledFunction(load_saved(text), *facts)


def _first(func: tirx.PrimFunc, arch: Arch, backend: Backend) -> _ScheduledFunction:
    try:
        result = schedule_function(func, arch)
    except Exception as error:  # a bug in one kernel must not fail the whole network
        if not backend.tolerates_errors:
            raise
        return _ScheduledFunction(
            func, f"unscheduled: {type(error).__name__}: {last_line(error)}", False
        )
    return _ScheduledFunction(result.func, result.rule, result.hint is not None)

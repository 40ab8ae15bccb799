"""Schedule the functions of a module, those of a CPU on all cores at once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt import forked
from tvmopt.device.arch import Arch
from tvmopt.errors import last_line
from tvmopt.kernels.backend import Backend, backend_of
from tvmopt.kernels.emit import SCHEDULED_ATTR
from tvmopt.kernels.families import by_name
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.structure import Structure

# Fewest functions that are worth a fork: each takes about 60 ms, and a fork with its result 100.
_WORTH_A_FORK = 8
# Kernels that are kept; a large network has a hundred distinct functions.
_KEPT = 512


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


_Key = tuple[Structure[None], Arch, Hashable]
_kernels: collections.OrderedDict[_Key, _ScheduledFunction] = collections.OrderedDict()


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
    known = arch.cost_parameters, *by_name().items()
    places: dict[_Key, list[int]] = {}
    for place, func in enumerate(funcs):
        places.setdefault((Structure(func, None), arch, known), []).append(place)
    keys = list(places)
    kernels = [_kernels.get(key) for key in keys]
    missing = [n for n, kernel in enumerate(kernels) if kernel is None]
    made = _made([keys[n][0].func for n in missing], arch, backend)
    for n, kernel in zip(missing, made, strict=True):
        kernels[n] = _kernels[keys[n]] = kernel
    while len(_kernels) > _KEPT:
        _kernels.popitem(last=False)
    pairs = zip(places.values(), kernels, strict=True)
    found = {place: kernel for own, kernel in pairs if kernel for place in own}
    return [found[place] for place in range(len(funcs))]


def _made(funcs: Sequence[tirx.PrimFunc], arch: Arch, backend: Backend) -> list[_ScheduledFunction]:
    """Schedule functions, in forks where that pays."""
    if len(funcs) < _WORTH_A_FORK or not forked.may_fork():
        return [_first(func, arch, backend) for func in funcs]

    def packed(func: tirx.PrimFunc) -> list[Any]:
        kernel = _first(func, arch, backend)
        return [tvm.ir.save_json(kernel.func), kernel.rule, kernel.is_scheduled]

    found = forked.compute_all(packed, funcs)
    return [_ScheduledFunction(tvm.ir.load_json(text), *facts) for text, *facts in found]


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

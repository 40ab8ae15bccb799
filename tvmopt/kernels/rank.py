"""Rank the candidates of all families that match a workload, by predicted cycles."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any

from tvmopt.device.arch import Arch
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.family import Family, Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.structure import Structure
from tvmopt.kernels.workload import Refusal, Workload

# Candidates of modelled families ranked before unmodelled ones; and, where no family has a cost
# model, candidates of each unmodelled family after the first.
_MODELLED_FIRST, _EACH_FURTHER = 8, 2
# Rankings that are kept; a large network has a hundred distinct functions in each size.
_KEPT = 1024


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranking of the candidates of one workload.

    Attributes:
        candidates: All candidates in ranked order, top-1 first.
        found: The match of each family that accepts the workload, without the cycles of
            :attr:`Backend.epilogue_nest_cycles`.
        refusals: For each other family, why it does not match.
    """

    candidates: tuple[Ranked[Any], ...]
    found: tuple[Found, ...]
    refusals: dict[str, Refusal]


def rank(
    workload: Workload, arch: Arch, families: Sequence[Family[Any, Any]], weighted: bool = True
) -> Ranking:
    """Rank the candidates of ``families``; keep the ranking for functions of equal structure.

    Choosing a layout, checking a conversion and building all rank the functions of a network, in
    each of its sizes.

    Args:
        workload: The function.
        arch: The device.
        families: In matching order; the last one accepts every workload.
        weighted: Whether to apply each family's weight, which makes predicted cycles comparable
            across all families of the device.

    Returns:
        The ranking, with the matches and refusals.
    """
    return _rank(
        Structure(workload.func, workload), arch, arch.cost_parameters, tuple(families), weighted
    )


@functools.lru_cache(maxsize=_KEPT)
def _rank(
    structure: Structure[Workload],
    arch: Arch,
    _cost_parameters: Hashable,  # part of the key: equal devices may have different ones
    families: tuple[Family[Any, Any], ...],
    weighted: bool,
) -> Ranking:
    workload = structure.carried
    found: list[Found] = []
    refusals: dict[str, Refusal] = {}
    for family in families:
        if not family.wanted(workload, found):
            continue
        form = family.match(workload, arch)
        if isinstance(form, Refusal):
            refusals[family.name] = form
            continue
        ranked = [r for r in family.rank(form, arch) if math.isfinite(r.cycles)]
        weight = family.weight(form, arch, found) if weighted else 1.0
        if weight != 1.0:
            ranked = [dataclasses.replace(r, cycles=r.cycles * weight) for r in ranked]
        found.append(Found(family, form, tuple(ranked)))
        if family.exclusive and ranked:
            if family.last_resort_follows:
                found.append(_last_resort(workload, arch, families[-1]))
            break
    candidates = _with_epilogue_nests(_in_order(workload, found), workload, arch, found)
    return Ranking(tuple(candidates), tuple(found), refusals)


def _last_resort(workload: Workload, arch: Arch, family: Family[Any, Any]) -> Found:
    form = family.match(workload, arch)
    return Found(family, form, tuple(family.rank(form, arch)[:1]))


def _with_epilogue_nests(
    ordered: list[Ranked[Any]], workload: Workload, arch: Arch, found: Sequence[Found]
) -> list[Ranked[Any]]:
    """Return the candidates with the cycles that all cost models leave out.

    They are added after sorting: the sum of floats can tie candidates that were in order.
    """
    modelled = {f.family.name for f in found if f.family.has_cost_model and f.ranked}
    cycles = backend_of(arch).epilogue_nest_cycles(workload, arch) if modelled else 0.0
    if not cycles:
        return ordered
    return [
        dataclasses.replace(r, cycles=r.cycles + cycles) if r.hint.template in modelled else r
        for r in ordered
    ]


def _in_order(workload: Workload, found: Sequence[Found]) -> list[Ranked[Any]]:
    modelled = [r for f in found if f.family.has_cost_model for r in f.ranked]
    modelled.sort(key=lambda r: r.cycles)
    others = [f for f in found if not f.family.has_cost_model]
    if any(f.family.last_resort_follows and f.ranked for f in found):
        return [*modelled, *(r for f in others for r in f.ranked)]
    if not modelled:
        return [
            r for n, f in enumerate(others) for r in (f.ranked[:_EACH_FURTHER] if n else f.ranked)
        ]
    leading: list[Ranked[Any]] = []
    beside: list[Ranked[Any]] = []
    for each in others:
        some = each.ranked[: each.family.beside]
        if each.family.leads(workload):
            leading += some[:1]
            some = some[1:]
        beside += some
    return [*leading, *modelled[:_MODELLED_FIRST], *beside, *modelled[_MODELLED_FIRST:]]

"""Replace kernels that the CUDA compiler rejects by kernels that compile."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.default_kernels import default_kernels
from tvmopt.kernels.emit import SCHEDULED_ATTR, NotApplicable, emit_kernel
from tvmopt.kernels.families import families_of
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# Configurations of a family that are compiled where top-1 does not compile.
_MOST_TRIES = 8


def replace_kernels(
    before: IRModule,
    after: IRModule,
    arch: CudaArch,
    why_not_built: Callable[[dict[str, tirx.PrimFunc]], str | None],
) -> tuple[IRModule, dict[str, str]]:
    """Replace the kernels that do not compile.

    Args:
        before: The module before :func:`schedule_module`.
        after: The module after it, which does not compile.
        arch: The GPU.
        why_not_built: Returns why kernels (by name) do not compile; None when they do.

    Returns:
        The new module; and for each replaced kernel its template and why top-1 was replaced. The
        mapping is empty where all kernels compile.
    """
    kernels = {
        var.name_hint: after[var]
        for var, func in before.functions_items()
        if isinstance(func, tirx.PrimFunc) and not func.attrs.get(SCHEDULED_ATTR, False)
    }
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    for name, reason in _failing(kernels, why_not_built).items():
        var = before.get_global_var(name)
        kernel, how = _other_kernel(before[var], arch, why_not_built)
        updates[var] = kernel.with_attr("global_symbol", name)
        served[name] = f"{how}, as top-1 does not compile: {reason}"
    out = after.clone()
    out.update(IRModule(updates))
    return out, served


def _failing(
    kernels: dict[str, tirx.PrimFunc],
    why_not_built: Callable[[dict[str, tirx.PrimFunc]], str | None],
) -> dict[str, str]:
    """Return the kernels that do not compile, with the reason, by bisection."""
    reason = why_not_built(kernels) if kernels else None
    if reason is None:
        return {}
    if len(kernels) == 1:
        return dict.fromkeys(kernels, reason)
    items, half = list(kernels.items()), len(kernels) // 2
    first, second = dict(items[:half]), dict(items[half:])
    return _failing(first, why_not_built) | _failing(second, why_not_built)


def _other_kernel(
    func: tirx.PrimFunc,
    arch: CudaArch,
    why_not_built: Callable[[dict[str, tirx.PrimFunc]], str | None],
) -> tuple[tirx.PrimFunc, str]:
    """Return the first candidate kernel of ``func`` that compiles, and its template.

    Of each group of configurations for which cost models err alike, one is tried.
    """
    groups: dict[tuple[object, ...], Ranked[Any]] = {}
    for ranked in _candidates(func, arch):
        groups.setdefault(ranked.hint.group, ranked)
    tries: collections.Counter[str] = collections.Counter()
    for ranked in groups.values():
        template = ranked.hint.template
        if tries[template] >= _MOST_TRIES:
            continue
        tries[template] += 1
        try:
            kernel = emit_kernel(func, ranked.hint)
        except NotApplicable:
            continue
        if why_not_built({"kernel": kernel}) is None:
            return kernel, template
    [(_, kernel)] = default_kernels(IRModule({"main": func}), arch).functions_items()
    return kernel, "TVM's default rules"


def _candidates(func: tirx.PrimFunc, arch: CudaArch) -> Iterator[Ranked[Any]]:
    """Yield the ranked candidates, then candidates of families that the ranking omits."""
    ranking = policy_of(func, arch).ranking
    yield from ranking.candidates
    asked = {found.family.name for found in ranking.found}
    workload = Workload(func)
    for family in families_of(arch):
        form = Refusal("asked") if family.name in asked else family.match(workload, arch)
        if not isinstance(form, Refusal):
            yield from sorted(family.rank(form, arch), key=lambda r: r.cycles)

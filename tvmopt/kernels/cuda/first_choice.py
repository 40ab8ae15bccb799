"""Make a function's kernel by the policy's first choice: no GPU needed, nothing measured."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import last_line
from tvmopt.kernels.cpu.apply import SCHEDULED_ATTR, NotApplicable
from tvmopt.kernels.cuda.apply import gpu_kernel
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.policy import CudaPolicy
from tvmopt.kernels.cuda.simt.configs import simt_matmul_hints
from tvmopt.kernels.cuda.simt_policy import SimtPolicy
from tvmopt.kernels.cuda.tensor_core_policy import product_of
from tvmopt.kernels.ranked import Ranked

# Configurations of one template that are tried before it is given up.
_MOST_REFUSALS = 8
# Configurations of one template that are compiled where the first choice does not.
_MOST_TRIES = 8


def first_kernel(func: tirx.PrimFunc, arch: CudaArch) -> tuple[tirx.PrimFunc, CudaHint] | str:
    """The kernel of ``func`` by the most promising configuration that its template takes.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The GPU.

    Returns:
        The kernel and its configuration; or why there is none.
    """
    policy = CudaPolicy(func, arch)
    reasons: dict[str, None] = {}
    for found in _kernels(func, policy, reasons):
        return found
    return policy.reason or "; ".join(reasons)


def _kernels(
    func: tirx.PrimFunc, policy: CudaPolicy, reasons: dict[str, None]
) -> Iterator[tuple[tirx.PrimFunc, CudaHint]]:
    """Kernels of ``func``, the most promising first; why templates refuse goes to ``reasons``."""
    refusals: collections.Counter[str] = collections.Counter()
    for ranked in policy.ranked:
        template = ranked.hint.template
        if refusals[template] >= _MOST_REFUSALS:
            continue
        try:
            yield gpu_kernel(func, ranked.hint), ranked.hint
        except NotApplicable as error:
            refusals[template] += 1
            reasons[str(error)] = None


def schedule_kernels(mod: IRModule, arch: CudaArch) -> tuple[IRModule, dict[str, str]]:
    """Make the kernel of every PrimFunc of ``mod`` that is not scheduled yet.

    Args:
        mod: A module after LegalizeOps, FuseOps and FuseTIR. It is not changed.
        arch: The GPU.

    Returns:
        The new module, in which every function can be launched; and for each function looked at
        the name of its template, or, beginning with ``"unscheduled: "``, why none takes it: such a
        function has TVM's default schedule.
    """
    updates: dict[GlobalVar, tirx.PrimFunc] = {}
    served: dict[str, str] = {}
    left: dict[GlobalVar, tirx.PrimFunc] = {}
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or func.attrs.get(SCHEDULED_ATTR, False):
            continue
        try:
            found = first_kernel(func, arch)
        except Exception as error:  # a fault of ours in one function must not cost the network
            found = f"{type(error).__name__}: {last_line(error)}"
        if isinstance(found, str):
            served[var.name_hint] = f"unscheduled: {found}"
            left[var] = func
        else:
            kernel, hint = found
            served[var.name_hint] = hint.template
            updates[var] = kernel.with_attr("global_symbol", var.name_hint)
    out = mod.clone()
    out.update(IRModule(updates))
    if left:
        out.update(default_kernels(IRModule(left), arch))
    return out, served


def replace_kernels(
    before: IRModule,
    after: IRModule,
    arch: CudaArch,
    why_not_built: Callable[[dict[str, tirx.PrimFunc]], str | None],
) -> tuple[IRModule, dict[str, str]]:
    """Give functions whose kernels do not compile other kernels, which do.

    Args:
        before: The module before :func:`schedule_kernels`.
        after: The module after it, which does not compile.
        arch: The GPU.
        why_not_built: Says why kernels, by their names, do not compile; None when they do.

    Returns:
        The new module, and for each function with another kernel its template and why it is not
        the first choice's; nothing where all kernels compile.
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
        served[name] = f"{how}, as the first choice does not compile: {reason}"
    out = after.clone()
    out.update(IRModule(updates))
    return out, served


def _failing(
    kernels: dict[str, tirx.PrimFunc],
    why_not_built: Callable[[dict[str, tirx.PrimFunc]], str | None],
) -> dict[str, str]:
    """Which of ``kernels`` do not compile, and why: halves that compile are not looked into."""
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
    """The first kernel of ``func`` that compiles, of one configuration of each family.

    Last come the families of templates that are not proposed as another is faster.
    """
    product = product_of(func)
    simple = [] if product is None else simt_matmul_hints(product, arch)
    families: dict[tuple[object, ...], Ranked] = {}
    for ranked in (*CudaPolicy(func, arch).ranked, *simple, *SimtPolicy(func, arch).ranked):
        families.setdefault(ranked.family, ranked)
    templates: collections.Counter[str] = collections.Counter()
    for ranked in families.values():
        template = ranked.hint.template
        if templates[template] >= _MOST_TRIES:
            continue
        templates[template] += 1
        try:
            kernel = gpu_kernel(func, ranked.hint)
        except NotApplicable:
            continue
        if why_not_built({"kernel": kernel}) is None:
            return kernel, template
    [(_, kernel)] = default_kernels(IRModule({"main": func}), arch).functions_items()
    return kernel, "TVM's default rules"


def default_kernels(mod: IRModule, arch: CudaArch) -> IRModule:
    """Every function of ``mod`` that nothing has scheduled under TVM's default rules (dlight)."""
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(), dlight.gpu.Fallback(),
    )  # fmt: skip
    with arch.to_tvm():
        return dlight.ApplyDefaultSchedule(*rules)(mod)

"""Make a function's kernel by the policy's first choice: no GPU needed, nothing measured."""

from __future__ import annotations

import collections

from tvm import IRModule, tirx
from tvm.ir import GlobalVar

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.apply import SCHEDULED_ATTR, NotApplicable
from tvmopt.schedule.gpu.apply import gpu_kernel
from tvmopt.schedule.gpu.hint import GpuHint

from .cuda import CudaPolicy

# Configurations of one template that are tried before it is given up.
_MOST_REFUSALS = 8


def first_kernel(func: tirx.PrimFunc, arch: CudaArch) -> tuple[tirx.PrimFunc, GpuHint] | str:
    """The kernel of ``func`` by the most promising configuration that its template takes.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The GPU.

    Returns:
        The kernel and its configuration; or why there is none.
    """
    policy = CudaPolicy(func, arch)
    refusals: collections.Counter[str] = collections.Counter()
    reasons: dict[str, None] = {}
    for ranked in policy.ranked:
        template = ranked.hint.template
        if refusals[template] >= _MOST_REFUSALS:
            continue
        try:
            return gpu_kernel(func, ranked.hint), ranked.hint
        except NotApplicable as error:
            refusals[template] += 1
            reasons[str(error)] = None
    return policy.reason or "; ".join(reasons)


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
        found = first_kernel(func, arch)
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


def default_kernels(mod: IRModule, arch: CudaArch) -> IRModule:
    """Every function of ``mod`` that nothing has scheduled under TVM's default rules (dlight)."""
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(), dlight.gpu.Fallback(),
    )  # fmt: skip
    with arch.to_tvm():
        return dlight.ApplyDefaultSchedule(*rules)(mod)

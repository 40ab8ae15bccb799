"""Lower Relax operators to fused TensorIR functions, which are tuned, scheduled and built.

Tuning and building run the same pipeline, so that a workload has the same structural hash in both
and the build finds its tuning record.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.kernels.scheduled import SCHEDULED_ATTR
from tvmopt.transform.allow_tf32 import AllowTf32, module_allows_tf32
from tvmopt.transform.attention import FuseAttention, SplitProjections
from tvmopt.transform.empty_reductions import InitialiseEmptyReductions
from tvmopt.transform.finish_kernels import FinishKernels
from tvmopt.transform.fold_columns import FoldColumns
from tvmopt.transform.fold_constant import FoldConstantIfAny
from tvmopt.transform.legalize import Legalize, legalize_map
from tvmopt.transform.lower_recurrence import LowerRecurrences
from tvmopt.transform.lower_response_norm import LowerResponseNorms
from tvmopt.transform.mark_exact_pairs import MarkExactPairs
from tvmopt.transform.merge_reshapes import MergeReshapes
from tvmopt.transform.multiply_by_reciprocal import MultiplyByReciprocal
from tvmopt.transform.narrow_images import TransposeNarrowImages
from tvmopt.transform.operand_signedness import ConvertOperandSignedness
from tvmopt.transform.outline_branches import OutlineBranches
from tvmopt.transform.packed_weight import UnpackWeights
from tvmopt.transform.pad_early import PadEarly
from tvmopt.transform.pad_outputs import PadOutputs
from tvmopt.transform.plan import Plan, PlanWinograd, in_planned_layouts
from tvmopt.transform.safe_division import GuardDivision
from tvmopt.transform.safe_indices import GuardIndices
from tvmopt.transform.simplify import simplify, simplify_passes
from tvmopt.transform.store_narrow import StoreNarrow
from tvmopt.transform.target_passes import TargetPasses, passes_of
from tvmopt.transform.wide_sums import WidenLongMeans
from tvmopt.transform.winograd import WinogradRule


def lower_passes(
    winograd: WinogradRule | None = None,
    target: tvm.target.Target | None = None,
    legalize: Mapping[str, Legalize] | None = None,
    attention: bool = True,
    allow_tf32: bool = False,
) -> list[tvm.transform.Pass]:
    """Return the passes of :func:`lower`, in order.

    Args:
        winograd: Winograd rule of the common legalization; not used with ``legalize``.
        target: Target to compile for; the passes are target-independent without.
        legalize: ``customize_legalize_map`` of ``LegalizeOps``, instead of the common one.
        attention: Whether attention, and what precedes and follows a GEMV, become one function
            where a kernel of ours computes it.
        allow_tf32: Whether float32 GEMMs and convolutions may round to TF32; for a GPU.
    """
    special = passes_of(target)
    return [
        # 1. Graph clean-up on Relax operators.
        *special.first(),
        UnpackWeights(special.unpacks_weights),
        LowerRecurrences(target),
        LowerResponseNorms(target),
        WidenLongMeans(),
        *simplify_passes(),
        *(_fuse_attention(target, special) if attention and target is not None else []),
        MergeReshapes(),
        GuardIndices(),
        GuardDivision(),
        MultiplyByReciprocal(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(["main"]),
        *special.combine(target),
        # 2. Operators with a dedicated library implementation.
        *([ConvertOperandSignedness(target)] if target is not None else []),
        TransposeNarrowImages(target),
        PadOutputs(target),
        FoldColumns(target),
        PadEarly(),
        relax.transform.CanonicalizeBindings(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        # 3. Legalize the rest to TensorIR, fold constants again, and fuse.
        relax.transform.LegalizeOps(dict(legalize or legalize_map(winograd))),
        InitialiseEmptyReductions(),
        relax.transform.AnnotateTIROpPattern(),
        FoldConstantIfAny(),
        OutlineBranches(),
        relax.transform.ConvertToDataflow(1),
        *special.before_fusion(),
        relax.transform.FuseOps(),
        StoreNarrow(),
        *(special.merge(target) if attention and target is not None else []),
        relax.transform.FuseTIR(),
        relax.transform.InlinePrivateFunctions(),
        relax.transform.DeadCodeElimination(["main"]),
        # 4. Mark what may round to TF32, weights as layout-free (a schedule may prepack them), and
        # int8 weights whose pairs of products are exact in int16.
        *([AllowTf32()] if allow_tf32 else []),
        relax.transform.AttachAttrLayoutFreeBuffers(),
        MarkExactPairs(target),
        # 5. On a GPU, reshapes become views.
        *special.last(),
        # 6. Kernels that no schedule makes.
        FinishKernels(target),
    ]


def _fuse_attention(target: tvm.target.Target, special: TargetPasses) -> list[tvm.transform.Pass]:
    return [SplitProjections(), FuseAttention(special.attention(target))]


def lower(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    *,
    winograd: bool = True,
    plan: Plan | None = None,
) -> tvm.IRModule:
    """Lower ``mod`` (weights bound) to calls of fused TensorIR functions.

    Args:
        mod: Module of Relax operators.
        target: Target to compile for.
        winograd: Whether 3 x 3 convolutions may use Winograd's algorithm, and attention and merged
            GEMVs a kernel of ours, where it is faster; with TVM's own schedules it is slower.
        plan: Implementation of each layer that differs from the converted module.

    Raises:
        UnsupportedOperatorError: When operators have no TensorIR legalization and would fail in
            code generation; all of them are listed. Also when tensors are int4, which TVM can
            neither fold nor compile for a CPU, and when an operator has no kernel for a GPU.
    """
    _refuse_int4(mod)
    special = passes_of(target)
    rule = winograd_rule(mod, target)
    allow_tf32 = _allows_tf32(mod, target)
    if plan:
        mod = planned(mod, plan, rule, winograd)
    if plan or not winograd:
        rule = None
    legalize = special.legalize(target, rule, allow_tf32)
    with target, tvm.transform.PassContext(opt_level=3):
        passes = lower_passes(None, target, legalize, winograd, allow_tf32)
        lowered = tvm.transform.Sequential(passes)(mod)
    check_lowered(lowered)
    if _is_gpu(target):
        _refuse_cpu_kernels(lowered)
    return lowered


def winograd_rule(mod: tvm.IRModule, target: tvm.target.Target) -> WinogradRule | None:
    """Return the Winograd rule of ``target`` for ``mod``; None for direct convolutions only."""
    if _allows_tf32(mod, target):
        # Direct convolution on tensor cores is faster than Winograd's on CUDA cores, and Winograd's
        # transformed tiles would lose more accuracy to TF32.
        return None
    return passes_of(target).winograd_rule(target)


def _is_gpu(target: tvm.target.Target) -> bool:
    return bool(target.kind.name == CudaArch.kind)


def _allows_tf32(mod: tvm.IRModule, target: tvm.target.Target) -> bool:
    return _is_gpu(target) and module_allows_tf32(mod)


def planned(
    mod: tvm.IRModule, plan: Plan, rule: WinogradRule | None, winograd: bool = True
) -> tvm.IRModule:
    """Return ``mod`` with the layouts and algorithms of ``plan`` applied to its layers."""
    mod = in_planned_layouts(simplify(mod), plan)
    use_winograd = PlanWinograd(plan, rule, modelled=winograd)
    return tvm.transform.Sequential([use_winograd])(mod)


def check_lowered(lowered: tvm.IRModule) -> None:
    """Raise :class:`UnsupportedOperatorError` when operators remain."""
    left = remaining_operators(lowered)
    if left:
        listed = ", ".join(f"{name} x{count}" for name, count in sorted(left.items()))
        raise UnsupportedOperatorError(
            f"every operator must lower to TensorIR, but these did not: {listed}; "
            "replace them in the model or fix more input dimensions"
        )


def _refuse_cpu_kernels(lowered: tvm.IRModule) -> None:
    """Refuse operators whose only kernel is one for CPUs, with loops over threads."""
    loops: list[tirx.For] = []
    found = []
    for var, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc) and func.attrs.get(SCHEDULED_ATTR, False):
            loops.clear()
            tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
            if any(loop.kind == tirx.ForKind.PARALLEL for loop in loops):
                found.append(var.name_hint.rstrip("0123456789"))
    if found:
        raise UnsupportedOperatorError(
            "operators must have a kernel for GPUs to be compiled for one, but these have one for "
            f"CPUs only: {', '.join(sorted(found))}; choose a CPU, or replace them in the model"
        )


def _refuse_int4(mod: tvm.IRModule) -> None:
    found: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and "int4" in str(getattr(expr.ty, "dtype", "")):
            found.append(str(expr.op.name if isinstance(expr.op, tvm.ir.Op) else expr.op))

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    if found:
        raise UnsupportedOperatorError(
            f"tensors must not be int4 to be compiled, but {len(found)} operators give some "
            f"({found[0]}); recast to int8 instead"
        )


def remaining_operators(mod: tvm.IRModule) -> dict[str, int]:
    """Return the Relax operators in ``mod`` that code generation does not support, with counts."""
    counts: dict[str, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            name = expr.op.name
            if not _emittable(name):
                counts[name] = counts.get(name, 0) + 1

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return counts


_EMITTABLE = {
    "relax.call_tir", "relax.call_dps_packed", "relax.call_pure_packed", "relax.call_tir_inplace",
    "relax.null_value", "relax.reshape", "relax.shape_of", "relax.tensor_to_shape",
    "relax.to_vdevice", "relax.hint_on_device", "relax.invoke_closure", "relax.make_closure",
    "relax.assert_op", "relax.print", "relax.call_inplace_packed", "relax.call_builtin_with_ctx",
}  # fmt: skip


def _emittable(name: str) -> bool:
    return name in _EMITTABLE or name.startswith(
        ("relax.vm.", "relax.builtin.", "relax.memory.", "relax.inspect.")
    )

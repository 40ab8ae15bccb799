"""Lowering that records which fused function computes which layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import tvm
from tvm import relax, tirx

from tvmopt.kernels.call_tir import called_function, is_call_tir
from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.attention import FuseAttention, SplitProjections
from tvmopt.transform.legalize import Legalize, legalize_map
from tvmopt.transform.lower import check_lowered, lower_passes, winograd_rule
from tvmopt.transform.plan import LAYER_ATTR, Plan, PlanWinograd, in_planned_layouts
from tvmopt.transform.simplify import simplify
from tvmopt.transform.target_passes import passes_of

# Operators with one anchor call each, which legalization can mark.
_TRACKED = ("relax.nn.conv2d", "relax.matmul")


@dataclasses.dataclass(frozen=True)
class LayerFunctions:
    """A lowered module with a separate function for every layer.

    Attributes:
        mod: The module, as from :func:`tvmopt.transform.lower.lower`, but equal functions are not
            merged.
        layer_of: Layer index that a function computes, by function name.
    """

    mod: tvm.IRModule
    layer_of: dict[str, int]


def lower_by_layer(mod: tvm.IRModule, target: tvm.target.Target, plan: Plan) -> LayerFunctions:
    """Lower ``mod`` and record the layer of each function.

    Only convolutions and matmuls are recorded, except those that became a part of attention.

    Args:
        mod: Module of Relax operators.
        target: Target to compile for.
        plan: As for ``lower``.
    """
    fuse = [SplitProjections(), FuseAttention(passes_of(target).attention(target))]
    mod = tvm.transform.Sequential(fuse)(in_planned_layouts(simplify(mod), plan))
    use_winograd = PlanWinograd(plan, winograd_rule(mod, target), mark=True)
    marks = _Marks(a for a in anchors(mod) if not use_winograd.tile(a))
    passes = lower_passes(None, target, marks.legalize_map(), attention=False)
    cut = next(i for i, one in enumerate(passes) if one.info.name == "FuseTIR")
    with target, tvm.transform.PassContext(opt_level=3):
        grouped = tvm.transform.Sequential([use_winograd, *passes[:cut]])(mod)
        layer_of = _layers_of_groups(grouped)
        fused = passes[cut](grouped)
        for var, func in fused.functions_items():
            if isinstance(func, tirx.PrimFunc):
                fused[var] = _marked(func, layer_of.get(var.name_hint))
        lowered = tvm.transform.Sequential(passes[cut + 1 :])(fused)
    check_lowered(lowered)
    found = {}
    for var, func in lowered.functions_items():
        if isinstance(func, tirx.PrimFunc) and LAYER_ATTR in (func.attrs or {}):
            found[var.name_hint] = int(func.attrs[LAYER_ATTR])
            lowered[var] = func.without_attr(LAYER_ATTR)
    return LayerFunctions(lowered, found if marks.are_right else {})


class _Marks:
    """Mark the TensorIR function of each anchor with its layer index, in anchor order."""

    def __init__(self, expected: Iterable[Anchor]) -> None:
        self._layers: dict[str, list[int]] = {op: [] for op in _TRACKED}
        for anchor in expected:
            self._layers.get(f"relax.{anchor.op}", []).append(anchor.index)
        self._seen = dict.fromkeys(_TRACKED, 0)

    @property
    def are_right(self) -> bool:
        """Whether all anchors were seen, that is, none was merged with another."""
        return all(self._seen[op] == len(layers) for op, layers in self._layers.items())

    def legalize_map(self) -> dict[str, Legalize]:
        """Return the legalization map, with marks for the tracked operators."""
        plain = legalize_map()
        return plain | {op: self._tracking(op, plain[op]) for op in _TRACKED}

    def _tracking(self, op: str, legalize: Legalize) -> Legalize:
        def run(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            out = legalize(builder, call)
            place = self._seen[op]
            self._seen[op] += 1
            if place >= len(self._layers[op]) or not is_call_tir(out):
                return out
            layer = self._layers[op][place]
            var = out.args[0]
            func = builder.get()[var].with_attr(LAYER_ATTR, layer)
            new = builder.add_func(func, var.name_hint)
            return relax.Call(out.op, [new, *out.args[1:]], out.attrs, out.ty_args)

        return run


def _layers_of_groups(mod: tvm.IRModule) -> dict[str, int]:
    """Return the layer of each fused group, and of each function that is called alone."""
    found: dict[str, int] = {}
    own = {
        var.name_hint: int(func.attrs[LAYER_ATTR])
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and LAYER_ATTR in (func.attrs or {})
    }
    for var, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue

        def look(expr: relax.Expr, name: str = var.name_hint) -> None:
            if (called := called_function(expr)) in own:
                found[called if name == "main" else name] = own[called]

        relax.analysis.post_order_visit(func, look)
    return found


def _marked(func: tirx.PrimFunc, layer: int | None) -> tirx.PrimFunc:
    plain = func.without_attr(LAYER_ATTR) if LAYER_ATTR in (func.attrs or {}) else func
    return plain if layer is None else plain.with_attr(LAYER_ATTR, layer)

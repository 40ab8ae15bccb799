"""Layers of a module: its anchor operators, with the index that every feature uses.

Index and name of a layer come from the ONNX node (:func:`tvmopt.frontend.import_onnx` stores them
on ``main``). Thus they mean the same in the layer table, in ``skip_layers`` and in every pass. A
pass must therefore keep the anchors of ``main`` in order, without adding or removing one. Other
modules have no stored layers: their anchors are numbered in binding order and named after their
variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm
from tvm import relax

ANCHOR_OPS = (
    "relax.nn.conv1d",
    "relax.nn.conv2d",
    "relax.nn.conv3d",
    "relax.nn.conv1d_transpose",
    "relax.nn.conv2d_transpose",
    "relax.nn.conv3d_transpose",
    "relax.matmul",
    "relax.einsum",
    "relax.nn.attention",
)
NAMES_ATTR = "tvmopt.layer_names"
INDICES_ATTR = "tvmopt.layer_indices"


@dataclasses.dataclass(frozen=True)
class Anchor:
    """One anchor operator of ``main``.

    Attributes:
        index: Index of its layer. Two anchors share an index when one ONNX node became both.
        name: Name of its layer.
        op: Relax operator without the prefix, such as ``"nn.conv2d"``.
        var: The variable bound to the call.
        call: The call.
    """

    index: int
    name: str
    op: str
    var: relax.Var
    call: relax.Call


def is_anchor(expr: object) -> bool:
    """Return whether ``expr`` is a call of an anchor operator."""
    return (
        isinstance(expr, relax.Call)
        and isinstance(expr.op, tvm.ir.Op)
        and expr.op.name in ANCHOR_OPS
    )


def anchors(mod: tvm.IRModule) -> list[Anchor]:
    """Return the anchors of ``main`` in topological order, including those in branches."""
    main = mod["main"]
    found: list[tuple[relax.Var, relax.Call]] = []
    _collect(main.body, found)
    attrs = main.attrs or {}
    names = [str(n) for n in attrs.get(NAMES_ATTR, [])]
    indices = [int(i) for i in attrs.get(INDICES_ATTR, [])]
    if not (len(names) == len(indices) == len(found)):
        names, indices = [var.name for var, _ in found], list(range(len(found)))
    return [
        Anchor(index, name, call.op.name.removeprefix("relax."), var, call)
        for index, name, (var, call) in zip(indices, names, found, strict=True)
    ]


def with_layers(mod: tvm.IRModule, names: Sequence[str], indices: Sequence[int]) -> tvm.IRModule:
    """Return ``mod`` with names and indices of its anchors' layers stored on ``main``."""
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    attrs = {NAMES_ATTR: list(names), INDICES_ATTR: [int(i) for i in indices]}
    out["main"] = mod["main"].with_attrs(attrs)
    return out


def _collect(expr: relax.Expr, found: list[tuple[relax.Var, relax.Call]]) -> None:
    if not isinstance(expr, relax.SeqExpr):
        return
    for block in expr.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if is_anchor(value):
                found.append((binding.var, value))
            elif isinstance(value, relax.If):
                _collect(value.true_branch, found)
                _collect(value.false_branch, found)

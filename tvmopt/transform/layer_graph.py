"""Graph of layers and the tensors between them, for the cost of layout conversions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import tvm
import tvm_ffi
from tvm import relax

from tvmopt.transform.anchors import anchors
from tvmopt.transform.layout.form import Change, LayoutForm, Shape, change
from tvmopt.transform.layout.layouts import conv_forms, parse_layouts
from tvmopt.transform.layout.rules import RULES
from tvmopt.transform.layout.tensors import static_shape

#: Owner of tensors that keep the module's layout: inputs, outputs, operators without a rule.
FIXED = -1


@dataclasses.dataclass(frozen=True, order=True)
class Link:
    """A tensor between two layers, at its smallest point on the way.

    Attributes:
        source: Layer whose layout the tensor has, or ``FIXED``.
        target: Layer whose layout it needs, or ``FIXED``.
        shape: Its shape in the module.
        dtype: Its dtype.
    """

    source: int
    target: int
    shape: Shape
    dtype: str


@dataclasses.dataclass(frozen=True)
class _Owned:
    """The layer whose layout a tensor follows, and the smallest tensor since that layer."""

    layer: int
    shape: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * tvm_ffi.dtype(self.dtype).itemsize


def layer_links(mod: tvm.IRModule, layers: Iterable[int]) -> list[Link]:
    """Return the tensors between the convolutions ``layers`` of ``mod`` and their surroundings.

    Elementwise operators, pooling and reductions keep the layout of their producer. Where tensors
    of several layers meet, the others are converted to the layout of the first.

    Args:
        mod: A converted module.
        layers: Indices of the layers whose layout may change.
    """
    meant = set(layers)
    layer_of = {a.var: a.index for a in anchors(mod) if a.index in meant}
    owned: dict[relax.Var, _Owned] = {}
    links: set[Link] = set()

    def link(source: _Owned, target: int) -> None:
        if source.layer != target:
            links.add(Link(source.layer, target, source.shape, source.dtype))

    for param in mod["main"].params:
        shape = static_shape(param.ty)
        if shape is not None:
            owned[param] = _Owned(FIXED, shape, str(param.ty.dtype))
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            sources = _sources(value, owned)
            if binding.var in layer_of:
                layer = layer_of[binding.var]
                for source in sources:
                    link(source, layer)
                found = _owned(binding.var, layer)
            else:
                found = _follow(binding.var, value, sources, link)
            if found is not None:
                owned[binding.var] = found
    result = mod["main"].body.body
    for var in relax.analysis.free_vars(result) if not isinstance(result, relax.Var) else [result]:
        if var in owned:
            link(owned[var], FIXED)
    return sorted(links)


def _sources(value: relax.Expr | None, owned: dict[relax.Var, _Owned]) -> list[_Owned]:
    if value is None:
        return []
    seen = dict.fromkeys(
        [value] if isinstance(value, relax.Var) else relax.analysis.free_vars(value)
    )
    return [owned[var] for var in seen if var in owned]


def _follow(
    var: relax.Var,
    value: relax.Expr | None,
    sources: list[_Owned],
    link: Callable[[_Owned, int], None],
) -> _Owned | None:
    """Return the owner of the result of an operator other than these layers."""
    if not sources:
        return _owned(var, FIXED)
    op = value.op if isinstance(value, relax.Call) else None
    plain = isinstance(value, relax.Var | relax.TupleGetItem)
    follows = plain or (isinstance(op, tvm.ir.Op) and op.name in RULES)
    if not follows:
        for source in sources:
            link(source, FIXED)
        return _owned(var, FIXED)
    lead = max(sources, key=lambda s: (s.layer != FIXED, math.prod(s.shape)))
    for source in sources:
        if source is not lead and math.prod(source.shape) == math.prod(lead.shape):
            link(source, lead.layer)
    own = _owned(var, lead.layer)
    if own is None:  # a tuple: its fields have the same total size
        return lead
    same = math.prod(own.shape) == math.prod(lead.shape)
    return lead if same and lead.bytes < own.bytes else own


def _owned(var: relax.Var, layer: int) -> _Owned | None:
    shape = static_shape(var.ty)
    return None if shape is None else _Owned(layer, shape, str(var.ty.dtype))


def forms_of(mod: tvm.IRModule, layouts: Iterable[str]) -> dict[str, LayoutForm]:
    """Return the form of a convolution's data in each layout, over the axes of ``mod``."""
    [call] = [a.call for a in anchors(mod) if a.op == "nn.conv2d"][:1]
    parsed = {layout: parse_layouts({"nn.conv2d": layout})["nn.conv2d"] for layout in layouts}
    return {layout: conv_forms(call, one).data for layout, one in parsed.items()}


def change_between(shape: Shape, source: LayoutForm, target: LayoutForm) -> Change | None:
    """Return the conversion between two forms; None when the shape does not fit one of them."""
    if len(shape) != len(source.order) or not (source.fits(shape) and target.fits(shape)):
        return None
    return change(shape, source, target)


def change_module(
    shape: Shape, dtype: str, source: LayoutForm, target: LayoutForm
) -> tvm.IRModule | None:
    """Return a module that converts a tensor between two forms; None when no data moves.

    Args:
        shape: Logical shape of the tensor.
        dtype: Its dtype.
        source: Form of the input.
        target: Form of the output.
    """
    step = change_between(shape, source, target)
    if step is None or step.is_free:
        return None
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(source.shape(shape), dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            out: relax.Expr = data
            if step.split is not None:
                out = builder.emit(relax.op.reshape(out, step.split))
            out = builder.emit(relax.op.permute_dims(out, list(step.axes or ())))
            if step.merge is not None:
                out = builder.emit(relax.op.reshape(out, step.merge))
            result = builder.emit_output(out)
        builder.emit_func_output(result)
    return builder.get()

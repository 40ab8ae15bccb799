"""One matmul for Q, K and V as three, so that attention reads each where its matmul writes it.

before -> after, for weights of shape (768, 2304)::

    lv0 = reshape(matmul(x, w) + b, (1, 128, 3, 12, 64))
    lv1 = split(permute_dims(lv0, [2, 0, 3, 1, 4]), 3)              # a copy of all three
    ->
    q = permute_dims(reshape(matmul(x, w[:, :768]) + b[:768], (1, 128, 1, 12, 64)), ...)
    k, v likewise; lv1 = (q, k, v)

Attention is found by its three operands. On a GPU, whose kernels read ranges of heads,
:class:`~tvmopt.transform.attention.combine_projections.CombineProjections` makes one matmul of the
three again.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.integer.values import static_shape

# Operators that may lie between a part and the matmul of attention that reads it.
_VIEWS = ("permute_dims", "reshape", "squeeze", "expand_dims", "astype", "multiply", "divide")


@dataclasses.dataclass(frozen=True)
class _PackedMatmul:
    """A matmul whose columns a split divides.

    Attributes:
        matmul: The variable of the matmul, of constant weights.
        steps: Operators from the matmul to the split, first one first.
        bounds: Columns at which the parts start, and the number of columns.
    """

    matmul: relax.Var
    steps: tuple[relax.Call, ...]
    bounds: tuple[int, ...]


@tvm.transform.module_pass(opt_level=0, name="SplitProjections")
class SplitProjections:
    """Split the matmuls in ``main`` whose parts are operands of attention."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        graph = Producers(mod["main"])
        found = {
            binding.var: packed
            for block in mod["main"].body.blocks
            for binding in block.bindings
            if (packed := _packed(binding.var, graph)) is not None
        }
        if not found:
            return mod
        sections = {packed.matmul: len(packed.bounds) - 1 for packed in found.values()}
        layers = [a for a in anchors(mod) for _ in range(sections.get(a.var, 1))]
        rewrite = _SplitMatmuls(mod, found, graph)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        out = relax.transform.CanonicalizeBindings()(rewrite.builder_.get())
        out = relax.transform.DeadCodeElimination(["main"])(out)
        return with_layers(out, [a.name for a in layers], [a.index for a in layers])


def _packed(var: relax.Var, graph: Producers) -> _PackedMatmul | None:
    """Return the matmul behind the split ``var``; None for other variables."""
    split = graph.call(var, "split")
    if split is None or not _feeds_attention(var, graph):
        return None
    expr, user = split.args[0], var
    axis, steps = int(split.attrs.axis) % expr.ty.ndim, list[relax.Call]()
    extent = static_shape(expr)
    while (shape := static_shape(expr)) is not None and graph.only(expr, [user]):
        last = axis == len(shape) - 1
        call = graph.call(expr, "matmul", "add", "reshape", "permute_dims", "astype")
        if call is None or extent is None:
            return None
        name = call.op.name.removeprefix("relax.")
        if name == "matmul":
            weights = graph.constant(call.args[1])
            if not last or weights is None or weights.ndim != 2:
                return None
            bounds = _bounds(split, int(extent[_axis_of(split)]), shape[-1])
            return None if bounds is None else _PackedMatmul(expr, tuple(steps[::-1]), bounds)
        if name == "add":
            bias = graph.constant(call.args[1])
            if not last or bias is None or bias.size != shape[-1] != 1:
                return None
        elif name == "permute_dims":
            order = call.attrs.axes
            axis = int(order[axis]) if order is not None else len(shape) - 1 - axis
        elif name == "reshape":
            before = static_shape(call.args[0])
            # The axis must be the outermost of those that the columns become.
            if before is None or math.prod(shape[axis:]) != before[-1]:
                return None
            axis = len(before) - 1
        steps.append(call)
        expr, user = call.args[0], expr
    return None


def _axis_of(split: relax.Call) -> int:
    return int(split.attrs.axis) % int(split.args[0].ty.ndim)


def _bounds(split: relax.Call, extent: int, columns: int) -> tuple[int, ...] | None:
    """Return the columns of the parts; None where parts do not lie at whole columns."""
    sections = split.attrs.indices_or_sections
    if hasattr(sections, "__len__"):
        places = [0, *(int(place) for place in sections), extent]
    else:
        count = int(sections.value if hasattr(sections, "value") else sections)
        if extent % count:
            return None
        places = [*range(0, extent + 1, extent // count)]
    if places != sorted(set(places)):
        return None
    return tuple(place * (columns // extent) for place in places)


def _feeds_attention(split: relax.Var, graph: Producers) -> bool:
    """Return whether every part is read by matmuls of activations only, through views."""
    waiting, reached = list[relax.Var | None](graph.users(split)), 0
    while waiting:
        var = waiting.pop()
        if var is None:
            return False
        call = graph.call(var, "matmul", *_VIEWS)
        if call is None and not graph.is_item(var):
            return False
        if call is not None and call.op.name == "relax.matmul":
            if any(graph.constant(arg) is not None for arg in call.args):
                return False
            reached += 1
        else:
            waiting += graph.users(var)
    return reached > 0


@mutator
class _SplitMatmuls(BoundCallMutator):
    def __init__(
        self, mod: tvm.IRModule, found: dict[relax.Var, _PackedMatmul], graph: Producers
    ) -> None:
        super().__init__(mod)
        self._found, self._graph = found, graph
        self._starts = {packed.matmul: packed for packed in found.values()}
        self._parts: dict[relax.Var, list[relax.Expr]] = {}
        self._columns_of: dict[tuple[relax.Expr, int, int], relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        packed = self._starts.get(binding.var)
        if packed is not None:  # in place of the whole, so that layers keep their order
            self._parts[binding.var] = [
                self._part(packed, *bounds) for bounds in itertools.pairwise(packed.bounds)
            ]
        super().visit_var_binding_(binding)

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        if var not in self._found:
            return None
        return relax.Tuple(self._parts[self._found[var].matmul])

    def _part(self, packed: _PackedMatmul, start: int, stop: int) -> relax.Expr:
        emit, op = self.builder_.emit, relax.op
        matmul = self._graph.call(packed.matmul, "matmul")
        assert matmul is not None
        whole = packed.bounds[-1]
        made = emit(
            op.matmul(
                self.visit_expr(matmul.args[0]),
                self._columns(matmul.args[1], start, stop),
                out_dtype=str(matmul.ty.dtype),
            )
        )
        for step in packed.steps:
            name = step.op.name.removeprefix("relax.")
            if name == "add":
                made = op.add(made, self._columns(step.args[1], start, stop))
            elif name == "astype":
                made = op.astype(made, str(step.ty.dtype))
            elif name == "permute_dims":
                made = op.permute_dims(made, step.attrs.axes)
            else:
                made = op.reshape(made, _narrowed(step, (stop - start), whole))
            made = emit(made)
        return made

    def _columns(self, expr: relax.Expr, start: int, stop: int) -> relax.Expr:
        """Return columns of a constant; layers that share it share them, too."""
        whole, data = self._graph.made(expr), self._graph.constant(expr)
        assert whole is not None and data is not None
        key = whole, start, stop
        if key not in self._columns_of:
            part = np.ascontiguousarray(data[..., start:stop])
            self._columns_of[key] = relax.const(tvm.runtime.tensor(part))
        return self._columns_of[key]


def _narrowed(reshape: relax.Call, columns: int, whole: int) -> tuple[int, ...]:
    """Return the shape of a reshape for ``columns`` of ``whole`` columns."""
    shape = list(static_shape(reshape) or ())
    axis = next(n for n in reversed(range(len(shape))) if math.prod(shape[n:]) == whole)
    shape[axis] = shape[axis] * columns // whole
    return tuple(shape)

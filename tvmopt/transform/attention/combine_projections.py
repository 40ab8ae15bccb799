"""Compute Q, K and V by one matmul, whose result attention reads in place.

before -> after, 12 heads of 64 elements, weights of shape (768, 768)::

    q = reshape(matmul(x, wq) + bq, (8, 128, 12, 64))         # k and v likewise
    out = call_tir(attention, (q, k, v))
    ->
    y = matmul(x, concat(wq, wk, wv, axis=1)) + concat(bq, bk, bv)
    y = reshape(y, (8, 128, 36, 64))
    out = call_tir(attention, (y, y, y))        # their first heads are 0, 12 and 24

The attention kernel loads a range of heads at the offset of the first one, with the row stride of
the whole tensor. So nothing is copied, and one launch replaces three. In cross-attention, K and V
become one matmul. :class:`~tvmopt.transform.combine_matmuls.CombineMatmuls` combines GEMVs whose
results other operators read.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from tvmopt.kernels.attention.problem import AttentionProblem, problem_of
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention.kernels import AttentionKernel
from tvmopt.transform.attention.producers import Producers, operator_name
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.integer.values import static_shape

# From the matmul to attention, in this order; all but the matmul are optional.
_STEPS = ("matmul", "add", "astype", "reshape")


@dataclasses.dataclass(frozen=True, eq=False)
class _Projection:
    """An operand of attention that a matmul with a constant weight computes.

    Attributes:
        operand: The operand: (..., heads, head size).
        matmul: The variable of the matmul.
        x: The first argument of the matmul.
        weight: The second argument: a constant (K, heads * head size).
        bias: The constant that is added to the matmul; None without.
    """

    operand: relax.Var
    matmul: relax.Var
    x: relax.Var
    weight: relax.Expr
    bias: relax.Expr | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the operand."""
        return static_shape(self.operand) or ()

    @property
    def key(self) -> object:
        """Equal for projections that one matmul can compute."""
        dtypes = (str(each.ty.dtype) for each in (self.matmul, self.weight, self.operand))
        return self.x, *dtypes, self.shape[:-2], self.shape[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class _Combined:
    """A call of attention whose projections become one matmul.

    Attributes:
        call: The variable of the call.
        kernel: The function that reads ranges of heads.
        projections: The projections, in the order of their heads.
    """

    call: relax.Var
    kernel: tirx.PrimFunc
    projections: tuple[_Projection, ...]


@tvm.transform.module_pass(opt_level=0, name="CombineProjections")
class CombineProjections:
    """Combine the matmuls in ``main`` that compute operands of one attention, and nothing else.

    Args:
        kernel: Returns the function of a problem; None where no kernel reads ranges of heads.
    """

    def __init__(self, kernel: AttentionKernel) -> None:
        self._kernel = kernel

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        graph = Producers(mod["main"])
        found = [
            combined
            for var, call, problem in _attention_calls(mod)
            if (combined := _combined(var, call, problem, graph, self._kernel)) is not None
        ]
        if not found:
            return mod
        layers = anchors(mod)
        place = {anchor.var: number for number, anchor in enumerate(layers)}
        starts, gone = dict[relax.Var, _Combined](), set[relax.Var]()
        for combined in found:
            matmuls = (each.matmul for each in combined.projections)
            first, *others = sorted(matmuls, key=lambda var: place[var])
            starts[first] = combined
            gone.update(others)
        rewrite = _OneProjection(mod, starts)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        out = relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())
        kept = [anchor for anchor in layers if anchor.var not in gone]
        return with_layers(out, [a.name for a in kept], [a.index for a in kept])


def _attention_calls(
    mod: tvm.IRModule,
) -> Iterator[tuple[relax.Var, relax.Call, AttentionProblem]]:
    """Yield the calls of attention in ``main``, with their variables and problems."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if not isinstance(call, relax.Call) or operator_name(call) != "call_tir":
                continue
            problem = problem_of(mod[call.args[0]])
            if problem is not None:
                yield binding.var, call, problem


def _combined(
    var: relax.Var,
    call: relax.Call,
    problem: AttentionProblem,
    graph: Producers,
    kernel: AttentionKernel,
) -> _Combined | None:
    """Return the projections of a call of attention that become one matmul; None without."""
    groups: dict[object, dict[str, _Projection]] = collections.defaultdict(dict)
    axes = (problem.q_axes, problem.k_axes, problem.v_axes)
    for name, order, operand in zip("qkv", axes, call.args[1].fields, strict=False):
        projection = _projection(operand, var, graph) if order.endswith("hd") else None
        if projection is not None:
            groups[projection.key][name] = projection
    for group in groups.values():
        # K and V may be the same tensor.
        projections = tuple({each.matmul: each for each in group.values()}.values())
        if len(projections) < 2:
            continue
        *firsts, heads = itertools.accumulate((p.shape[-2] for p in projections), initial=0)
        first = dict(zip((p.matmul for p in projections), firsts, strict=True))
        ranges = {name: (first[p.matmul], heads) for name, p in group.items()}
        function = kernel(
            dataclasses.replace(
                problem,
                q_heads=ranges.get("q"),
                k_heads=ranges.get("k"),
                v_heads=ranges.get("v"),
            )
        )
        return None if function is None else _Combined(var, function, projections)
    return None


def _projection(operand: relax.Expr, user: relax.Var, graph: Producers) -> _Projection | None:
    """Return the matmul behind an operand; None where others read it or it is something else."""
    expr, bias, left = operand, None, len(_STEPS)
    while graph.only(expr, [user]):
        call = graph.call(expr, *_STEPS[:left])
        if call is None:
            return None
        name, source = operator_name(call), call.args[0]
        # Reshapes may follow each other; matmuls, additions and casts may not.
        left = _STEPS.index(name) + (name == "reshape")
        if name == "matmul":
            weight = graph.constant(call.args[1])
            is_one = weight is not None and weight.ndim == 2 and isinstance(source, relax.Var)
            *_, heads, size = static_shape(operand) or (0, 0)
            if not is_one or (static_shape(expr) or ())[-1:] != (heads * size,):
                return None
            return _Projection(operand, expr, source, graph.made(call.args[1]), bias)
        if name == "add":
            found = _without_bias(call, graph)
            if found is None:
                return None
            source, bias = found
        expr, user = source, expr
    return None


def _without_bias(call: relax.Call, graph: Producers) -> tuple[relax.Expr, relax.Expr] | None:
    """Return what a constant for each column is added to, and the constant."""
    for source, bias in (call.args, reversed(call.args)):
        values, shape = graph.constant(bias), static_shape(source)
        if values is None or shape is None or static_shape(call) != shape:
            continue
        if values.shape[-1:] == shape[-1:] and values.size == shape[-1]:
            return source, graph.made(bias)
    return None


@mutator
class _OneProjection(BoundCallMutator):
    def __init__(self, mod: tvm.IRModule, starts: Mapping[relax.Var, _Combined]) -> None:
        super().__init__(mod)
        self._starts = starts
        self._calls = {combined.call: combined for combined in starts.values()}
        self._results: dict[relax.Var, relax.Var] = {}
        self._constants: dict[tuple[relax.Expr, ...], relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        combined = self._starts.get(binding.var)
        if combined is not None:
            result = self._matmul(combined.projections)
            self._results |= {each.operand: result for each in combined.projections}
        super().visit_var_binding_(binding)

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        combined = self._calls.get(var)
        if combined is None:
            return None
        operands = call.args[1].fields
        args = [self._results[x] if x in self._results else self.visit_expr(x) for x in operands]
        function = self.builder_.add_func(combined.kernel, "attention")
        return relax.op.call_tir(function, args, call.ty)

    def _matmul(self, projections: Sequence[_Projection]) -> relax.Var:
        """Emit the matmul and what follows it, up to the tensor that attention reads."""
        emit, op, first = self.builder_.emit, relax.op, projections[0]
        dtype = str(first.matmul.ty.dtype)
        weight = self._side_by_side([each.weight for each in projections])
        made = emit(op.matmul(self.visit_expr(first.x), weight, out_dtype=dtype))
        if any(each.bias is not None for each in projections):
            biases = [
                _zeros(each, dtype) if each.bias is None else each.bias for each in projections
            ]
            made = emit(op.add(made, self._side_by_side(biases)))
        if str(first.operand.ty.dtype) != dtype:
            made = emit(op.astype(made, str(first.operand.ty.dtype)))
        heads = sum(each.shape[-2] for each in projections)
        return emit(op.reshape(made, (*first.shape[:-2], heads, first.shape[-1])))

    def _side_by_side(self, constants: Sequence[relax.Expr]) -> relax.Expr:
        """Return constants concatenated along their last axis, once for layers that share them."""
        key = tuple(constants)
        if key not in self._constants:
            arrays = [each.value.numpy() for each in constants]
            rows = arrays[0].shape[:-1] if arrays[0].ndim == 2 else ()
            whole = np.concatenate([a.reshape(*rows, -1) for a in arrays], axis=-1)
            self._constants[key] = relax.const(tvm.runtime.tensor(whole))
        return self._constants[key]


def _zeros(projection: _Projection, dtype: str) -> relax.Expr:
    """Return the bias of a projection that has none."""
    columns = projection.shape[-2] * projection.shape[-1]
    return relax.const(np.zeros(columns), dtype)

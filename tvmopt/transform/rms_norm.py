"""Compute RMSNorm, which models spell out in small operators, in one function.

before -> after, for ``x`` in float16 and a constant ``weight``::

    wide = astype(x, "float32")
    root = sqrt(mean(wide ** 2, axis=-1, keepdims=True) + eps)
    y = astype(wide / root * weight, "float16")
    ->
    y = call_tir(rms_norm, (x, weight))

A cast to the narrow dtype between the division and the weight is left out. The graph may multiply
by ``rsqrt`` or by the reciprocal of the root, and have no weight. RMSNorm: Zhang and Sennrich 2019,
arXiv:1910.07467.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.integer.values import static_shape

_WIDE = "float32"


@dataclasses.dataclass(frozen=True)
class _RmsNorm:
    """RMSNorm in a graph.

    Attributes:
        x: The input, before it is cast to float32.
        weight: Factors on the normalised row, float32; None without.
        epsilon: Added to the mean of squares.
        result: The variable of the result.
    """

    x: relax.Expr
    weight: np.ndarray | None
    epsilon: float
    result: relax.Var


@tvm.transform.module_pass(opt_level=0, name="FuseRmsNorm")
class FuseRmsNorm:
    """Replace RMSNorm over the last axis in ``main`` by calls of one function each."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        main = mod["main"]
        graph = Producers(main)
        found = {
            norm.result: norm
            for block in main.body.blocks
            for binding in block.bindings
            if (norm := _rms_norm(binding.var, graph)) is not None
        }
        if not found:
            return mod
        rewrite = _FuseNorms(mod, found)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(main))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


def _rms_norm(var: relax.Var, graph: Producers) -> _RmsNorm | None:
    """Return the RMSNorm whose mean of squares is ``var``; None if it is something else."""
    mean = graph.call(var, "mean")
    shape = static_shape(mean.args[0]) if mean is not None else None
    if mean is None or not shape or not bool(mean.attrs.keepdims) or mean.attrs.axis is None:
        return None
    wide = _squared(mean.args[0], graph)
    if [int(axis) % len(shape) for axis in mean.attrs.axis] != [len(shape) - 1] or wide is None:
        return None
    added = _only_user(var, graph)
    epsilon = None if added is None else _added(added, var, graph)
    root = None if added is None else _only_user(added, graph)
    if str(wide.ty.dtype) != _WIDE or epsilon is None or root is None:
        return None
    divided = _divided(root, wide, graph)
    if divided is None:
        return None
    weight, result = _weighted(divided, shape[-1], graph)
    return _RmsNorm(_narrow(wide, graph), weight, epsilon, _cast(result, graph))


def _squared(expr: relax.Expr, graph: Producers) -> relax.Expr | None:
    """Return ``x`` of ``x ** 2`` or ``x * x``."""
    power, product = graph.call(expr, "power"), graph.call(expr, "multiply")
    if power is not None and graph.scalar(power.args[1]) == 2.0:
        return power.args[0]
    return product.args[0] if product is not None and product.args[0] == product.args[1] else None


def _added(var: relax.Var, mean: relax.Var, graph: Producers) -> float | None:
    """Return the constant that ``var`` adds to ``mean``."""
    call = graph.call(var, "add")
    if call is None:
        return None
    others = [arg for arg in call.args if arg != mean]
    return graph.scalar(others[0]) if len(others) == 1 else None


def _divided(root: relax.Var, wide: relax.Expr, graph: Producers) -> relax.Var | None:
    """Return the variable of ``wide / sqrt(...)`` from the square root on, or its reciprocal."""
    inverse = graph.call(root, "rsqrt") is not None
    if not inverse and graph.call(root, "sqrt") is None:
        return None
    user = _only_user(root, graph)
    quotient = None if user is None else graph.call(user, "divide")
    if user is not None and quotient is not None and graph.scalar(quotient.args[0]) == 1.0:
        if inverse or quotient.args[1] != root:
            return None
        root, inverse, user = user, True, _only_user(user, graph)
    call = None if user is None else graph.call(user, "multiply" if inverse else "divide")
    if call is None:
        return None
    same = set(call.args) == {wide, root} if inverse else list(call.args) == [wide, root]
    return user if same else None


def _weighted(
    var: relax.Var, columns: int, graph: Producers
) -> tuple[np.ndarray | None, relax.Var]:
    """Return the constant that multiplies rows of ``var``, and the variable of the product."""
    cast = _cast(var, graph)
    user = _only_user(cast, graph)
    call = None if user is None else graph.call(user, "multiply")
    if call is None or user is None or static_shape(user) != static_shape(var):
        return None, var
    values = [graph.constant(arg) for arg in call.args if arg != cast]
    if len(values) != 1 or values[0] is None or values[0].shape[-1:] != (columns,):
        return None, var
    weight = values[0]
    return (weight.reshape(-1).astype(_WIDE), user) if weight.size == columns else (None, var)


def _cast(var: relax.Var, graph: Producers) -> relax.Var:
    """Return the cast of ``var`` to a float dtype, if that is its only user; else ``var``."""
    user = _only_user(var, graph)
    if user is None or graph.call(user, "astype") is None:
        return var
    return user if str(user.ty.dtype) in (*HALF_FLOATS, _WIDE) else var


def _narrow(wide: relax.Expr, graph: Producers) -> relax.Expr:
    """Return what ``wide`` is cast from, if it is a 16-bit float; else ``wide``."""
    call = graph.call(wide, "astype")
    if call is None or str(call.args[0].ty.dtype) not in HALF_FLOATS:
        return wide
    return call.args[0]


def _only_user(var: relax.Var, graph: Producers) -> relax.Var | None:
    users = graph.users(var)
    return users[0] if len(users) == 1 else None


@mutator
class _FuseNorms(BoundCallMutator):
    def __init__(self, mod: tvm.IRModule, found: dict[relax.Var, _RmsNorm]) -> None:
        super().__init__(mod)
        self._found = found

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        norm = self._found.get(var)
        if norm is None:
            return None
        operands = [self.visit_expr(norm.x)]
        if norm.weight is not None:
            operands.append(relax.const(norm.weight, _WIDE))
        dtype = str(call.ty.dtype)

        def compute(*tensors: te.Tensor) -> te.Tensor:
            return _computed(norm.epsilon, dtype, *tensors)

        return self.builder_.call_te(compute, *operands, primfunc_name_hint="rms_norm")


def _computed(
    epsilon: float, dtype: str, x: te.Tensor, weight: te.Tensor | None = None
) -> te.Tensor:
    """Return RMSNorm of the rows of ``x`` in ``dtype``; accumulators are float32."""
    *rows, columns = x.shape
    k = te.reduce_axis((0, columns), "k")

    def square(*at: tirx.Var) -> tirx.PrimExpr:
        value = x[(*at, k)].astype(_WIDE)
        return te.sum(value * value, axis=k)

    total = te.compute(tuple(rows), square, name="squares")

    def element(*at: tirx.Var) -> tirx.PrimExpr:
        mean = total[at[:-1]] / tirx.const(int(columns), _WIDE)
        y = x[at].astype(_WIDE) / tirx.sqrt(mean + tirx.const(epsilon, _WIDE))
        return (y if weight is None else y * weight[at[-1]]).astype(dtype)

    return te.compute(x.shape, element, name="rms_norm")

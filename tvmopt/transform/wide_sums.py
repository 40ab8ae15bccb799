"""Legalize sum, mean, variance and std of 16-bit floats with a float32 accumulator.

before -> after: ``mean(x: float16) -> cast(sum(cast(x, float32)) / count, float16)``, one function.
TVM accumulates 16-bit floats in 16 bits: sums of some thousand elements lose most of their digits,
and sums beyond 65504 become infinite.

TVM fails on a mean of more than 65504 elements already during constant folding, because float16
cannot hold the count. :class:`WidenLongMeans` runs before: ``mean(x) -> cast(mean(cast(x,
float32)))``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.integer.values import static_shape

_WIDE = "float32"
# Largest float16, and the operators whose legalization contains the element count.
_LARGEST, _COUNTING = 65504, ("relax.mean", "relax.variance", "relax.std")


def _sum(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    return topi.sum(x, axes, keepdims)


def _mean(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    count = functools.reduce(lambda a, b: a * b, (x.shape[axis] for axis in axes))
    return topi.divide(topi.sum(x, axes, keepdims), tirx.Cast(_WIDE, count))


def _variance(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    centred = topi.subtract(x, _mean(x, axes, True))
    return _mean(topi.multiply(centred, centred), axes, keepdims)


def _std(x: te.Tensor, axes: list[int], keepdims: bool) -> te.Tensor:
    return topi.sqrt(_variance(x, axes, keepdims))


_SUMS: dict[str, Callable[[te.Tensor, list[int], bool], te.Tensor]] = {
    "relax.sum": _sum,
    "relax.mean": _mean,
    "relax.variance": _variance,
    "relax.std": _std,
}


def wide_sums() -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Return the legalization map by operator; other dtypes use TVM's legalization."""
    return {name: functools.partial(_legalize, compute) for name, compute in _SUMS.items()}


def _legalize(
    compute: Callable[[te.Tensor, list[int], bool], te.Tensor],
    builder: relax.BlockBuilder,
    call: relax.Call,
) -> relax.Expr:
    [data] = call.args
    axes = _axes(call)
    if str(data.ty.dtype) not in HALF_FLOATS or data.ty.shape is None or not axes:
        return call.op.get_attr("FLegalize")(builder, call)
    keepdims = bool(call.attrs.keepdims)
    return in_float32(builder, call, lambda x: compute(x, axes, keepdims))


def in_float32(
    builder: relax.BlockBuilder, call: relax.Call, compute: Callable[[te.Tensor], te.Tensor]
) -> relax.Expr:
    """Return a call of one function that computes in float32, and rounds the result.

    Args:
        builder: The builder.
        call: A call with one operand, of 16 bits.
        compute: The result, of the operand in float32.
    """
    [data] = call.args
    dtype = str(data.ty.dtype)

    def rounded(x: te.Tensor) -> te.Tensor:
        return topi.cast(compute(topi.cast(x, _WIDE)), dtype)

    hint = call.op.name.removeprefix("relax.").removeprefix("nn.")
    return builder.call_te(rounded, data, primfunc_name_hint=hint)


def _axes(call: relax.Call) -> list[int]:
    """Return the reduction axes."""
    given, rank = call.attrs.axis, int(call.args[0].ty.ndim)
    return list(range(rank)) if given is None else sorted(int(a) % rank for a in given)


@tvm.transform.module_pass(opt_level=0, name="WidenLongMeans")
class WidenLongMeans:
    """Compute means over more elements than float16 can count in float32."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        rewrite = _Widen(mod)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod[main]))
        return rewrite.builder_.get()


@mutator
class _Widen(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name not in _COUNTING or str(call.args[0].ty.dtype) not in HALF_FLOATS:
            return call
        shape = static_shape(call.args[0])
        if shape is None or math.prod(shape[axis] for axis in _axes(call)) <= _LARGEST:
            return call
        dtype = str(call.args[0].ty.dtype)
        wide = self.builder_.emit(relax.op.astype(call.args[0], _WIDE))
        mean = self.builder_.emit(relax.Call(call.op, [wide], call.attrs, call.ty_args))
        return relax.op.astype(mean, dtype)

"""The bounds of a Clip that the importer wrote as TensorIR.

before -> after: ``call_tir(maximum, (x, const))`` -> a lower bound of ``x``. From opset 11 on, TVM
imports Clip as two such calls.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax, tirx

from tvmopt.transform.integer.arithmetic import bounded
from tvmopt.transform.integer.context import Context, RuleResult


def bound_of_tensor_ir(ctx: Context, mod: tvm.IRModule, call: relax.Call) -> RuleResult:
    """The clipped value when ``call`` bounds its first operand by a scalar constant."""
    args = call.args[1]
    if not isinstance(args, relax.Tuple) or len(args.fields) != 2:
        return None
    limit = ctx.constant(args.fields[1])
    func = mod[call.args[0]] if isinstance(call.args[0], tvm.ir.GlobalVar) else None
    if limit is None or limit.size != 1 or not isinstance(func, tirx.PrimFunc):
        return None
    kind = _comparison(func)
    if kind is None:
        return None
    number = float(limit.reshape(()))
    low, high = (number, math.inf) if kind is tirx.Max else (-math.inf, number)
    return bounded(ctx.value(args.fields[0]), low, high)


def _comparison(func: tirx.PrimFunc) -> type | None:
    """``tirx.Max`` or ``tirx.Min`` when that is all ``func`` does, elementwise with a scalar."""
    stores: list[tirx.BufferStore] = []

    def visit(node: object) -> None:
        if isinstance(node, tirx.BufferStore):
            stores.append(node)

    tirx.stmt_functor.post_order_visit(func.body, visit)
    if len(stores) != 1 or not isinstance(stores[0].value, tirx.Max | tirx.Min):
        return None
    store, value = stores[0], stores[0].value
    if not all(isinstance(side, tirx.BufferLoad) for side in (value.a, value.b)):
        return None
    same_place = len(value.a.indices) == len(store.indices) and all(
        a.same_as(b) for a, b in zip(value.a.indices, store.indices, strict=True)
    )
    return type(value) if same_place and math.prod(value.b.buffer.shape) == 1 else None

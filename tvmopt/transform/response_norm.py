"""LRN in Relax: a call that stands for it, and the same in Relax's operators.

It is ``call_dps_packed('tvmopt.response_norm {"axis": 1, "size": 5, ...}', (x,))`` in the graph, so
that layout rules move its axis and a CPU's kernel replaces it
(:mod:`tvmopt.transform.lower_response_norm`).

ONNX Runtime keeps one running sum: it adds squares that enter the window and subtracts squares that
leave. An infinite or NaN square thus makes the sum NaN after it has left the window, and
``x / inf = 0`` does not hide an overflow in the network. Here each window is summed separately; NaN
is inserted where such a square precedes the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from tvmopt.kernels.response_norm import ResponseNorm

_PREFIX = "tvmopt.response_norm "
Emit = Callable[[relax.Expr], relax.Expr]


def response_norm_call(norm: ResponseNorm, data: relax.Expr) -> relax.Call:
    """Return the call that stands for ``norm`` of ``data``, of static shape."""
    return relax.op.call_dps_packed(_PREFIX + norm.to_json(), relax.Tuple([data]), data.ty)


def response_norm_of(expr: object) -> ResponseNorm | None:
    """Return the LRN that a call stands for; None for other expressions."""
    if not isinstance(expr, relax.Call):
        return None
    if getattr(expr.op, "name", "") != "relax.call_dps_packed":
        return None
    symbol = str(expr.args[0].global_symbol)
    if not symbol.startswith(_PREFIX):
        return None
    return ResponseNorm.from_json(symbol.removeprefix(_PREFIX))


def in_operators(norm: ResponseNorm, data: relax.Expr, emit: Emit) -> relax.Expr:
    """Return the LRN of ``data`` in operators of Relax.

    Args:
        norm: The LRN.
        data: Of static shape.
        emit: Binds an expression to a variable.
    """
    shape, dtype = [int(extent) for extent in data.ty.shape], str(data.ty.dtype)
    squares = emit(relax.op.multiply(data, data))
    mean = emit(_mean_of_windows(squares, shape, norm, emit))
    alpha, bias = relax.const(norm.alpha, dtype), relax.const(norm.bias, dtype)
    scale = emit(relax.op.add(emit(relax.op.multiply(mean, alpha)), bias))
    divisor = emit(relax.op.power(scale, relax.const(norm.beta, dtype)))
    behind = emit(_behind_overflow(squares, shape, norm, emit))
    quotient = emit(relax.op.divide(data, divisor))
    return relax.op.where(behind, relax.const(np.nan, dtype), quotient)


def _mean_of_windows(
    squares: relax.Expr, shape: list[int], norm: ResponseNorm, emit: Emit
) -> relax.Expr:
    """Return the sum of each window divided by ``size``, including zero padding; same shape."""
    before, after = shape[: norm.axis], shape[norm.axis + 1 :]
    flat = relax.op.reshape(squares, (math.prod(before), 1, shape[norm.axis], math.prod(after)))
    mean = relax.op.nn.avg_pool2d(
        emit(flat),
        pool_size=[norm.size, 1],
        padding=[norm.before, 0, norm.after, 0],
        count_include_pad=True,
    )
    return relax.op.reshape(emit(mean), shape)


def _behind_overflow(
    squares: relax.Expr, shape: list[int], norm: ResponseNorm, emit: Emit
) -> relax.Expr:
    """Return where a channel before the window has a non-finite square."""
    channels = shape[norm.axis]
    number = np.arange(channels, dtype="int32").reshape(
        [channels] + [1] * (len(shape) - norm.axis - 1)
    )
    infinite = relax.op.where(
        emit(relax.op.isfinite(squares)), relax.const(channels, "int32"), relax.const(number)
    )
    first = relax.op.min(emit(infinite), axis=[norm.axis], keepdims=True)
    return relax.op.less(emit(first), relax.const(number - norm.before))

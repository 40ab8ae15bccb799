"""Post-transforms of scores in Relax, in the formulas of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax
from tvm.relax import op

#: By the number of TreeEnsemble's attribute.
NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
# SOFTMAX_ZERO leaves out values this close to 0.
_ZERO = 1e-7
# Winitzki's approximation of the inverse error function.
_WINITZKI = 0.147


def post_transform(name: str, scores: relax.Expr) -> relax.Expr:
    """Return the transformed scores (rows, classes), float32.

    Raises:
        ValueError: When there is no such transform.
    """
    if name not in _FUNCTIONS:
        raise ValueError(f"post_transform must be of {', '.join(NAMES)}, but is {name}")
    return _FUNCTIONS[name](scores)


def logistic(x: relax.Expr) -> relax.Expr:
    """Return 1 / (1 + exp(-x)) without overflow."""
    half = op.divide(_c(1), op.add(_c(1), op.exp(op.negative(op.abs(x)))))
    return op.where(op.less(x, _c(0)), op.subtract(_c(1), half), half)


def probit(x: relax.Expr) -> relax.Expr:
    """Return the inverse of the normal distribution function."""
    x = op.subtract(op.multiply(_c(2), x), _c(1))
    log = op.log(op.multiply(op.subtract(_c(1), x), op.add(_c(1), x)))
    v = op.add(_c(2 / (math.pi * _WINITZKI)), op.multiply(_c(0.5), log))
    inner = op.subtract(op.multiply(v, v), op.multiply(_c(1 / _WINITZKI), log))
    size = op.sqrt(op.subtract(op.sqrt(inner), v))
    signed = op.where(op.less(x, _c(0)), op.negative(size), size)
    return op.multiply(_c(math.sqrt(2)), signed)


def _softmax(x: relax.Expr) -> relax.Expr:
    return op.nn.softmax(x, axis=-1)


def _softmax_zero(x: relax.Expr) -> relax.Expr:
    largest = op.max(x, axis=-1, keepdims=True)
    power = op.exp(op.subtract(x, largest))
    counts = op.greater(op.abs(x), _c(_ZERO))
    total = op.sum(op.where(counts, power, _c(0)), axis=-1, keepdims=True)
    small = op.multiply(x, op.exp(op.negative(largest)))
    return op.divide(op.where(counts, power, small), total)


def _c(value: float) -> relax.Expr:
    return relax.const(value, "float32")


_FUNCTIONS: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "NONE": lambda scores: scores,
    "SOFTMAX": _softmax,
    "LOGISTIC": logistic,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}

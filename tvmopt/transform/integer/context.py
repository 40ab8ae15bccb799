"""Context of a lowering rule: the emitter, the values known so far, and the later quantize."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from tvm import relax

from tvmopt.transform.integer.emit import Emitter
from tvmopt.transform.integer.values import (
    Constant,
    Linear,
    QuantParams,
    Shape,
    Term,
    Value,
    array_of,
    static_shape,
)


@dataclasses.dataclass(frozen=True)
class Context:
    """State shared by all rules.

    Attributes:
        emitter: Emits into the output function.
        values: Value of each variable of the input function bound so far.
        quantised_later: Returns the parameters of the quantize that a variable reaches through
            data movement alone; otherwise None.
    """

    emitter: Emitter
    values: Mapping[relax.Var, Value]
    quantised_later: Callable[[relax.Var], QuantParams | None]

    def value(self, expr: relax.Expr) -> Value:
        """Return the value of an argument."""
        if isinstance(expr, relax.Var):
            return self.values.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field) for field in expr.fields)
        return expr

    def constant(self, expr: relax.Expr) -> np.ndarray | None:
        """Return the float data of a constant argument, dequantized if needed; otherwise None."""
        return constant_of(self.value(expr))

    def linear(self, expr: relax.Expr) -> Linear | None:
        """Return an argument as a :class:`Linear`, including dequantized constants."""
        value = self.value(expr)
        if isinstance(value, Linear):
            return value
        if not isinstance(value, Constant) or value.data.dtype.itemsize > 2:
            return None
        tensor = relax.const(value.data)
        return Linear((Term(tensor, value.scale, -value.zero),), value.data.shape)

    def quantised(self, expr: relax.Expr) -> Linear | None:
        """Return an argument as one integer tensor of at most 16 bits with one scale, or None.

        A relu is applied to the integers; so is a clip whose bounds are representable.
        """
        value = self.linear(expr)
        if value is None or len(value.terms) != 1:
            return None
        term = value.terms[0]
        simple = term.scale.ndim == 0 and term.shift.ndim == 0 and value.offset.ndim == 0
        if term.dtype == "int32" or not simple or term.scale <= 0 or value.offset != 0:
            return None
        if not value.clamped:
            return value
        low, high = (_step(bound, term) for bound in (value.low, value.high))
        if low is None or high is None:
            return None
        tensor = self.emitter.clipped(term.tensor, low, high)
        return Linear((dataclasses.replace(term, tensor=tensor),), value.shape)


RuleResult: TypeAlias = "Value | None"
Rule: TypeAlias = Callable[[Context, relax.Var, relax.Call], RuleResult]
"""A rule gives the value of a call; None when the call stays as it is, on floats."""


def constant_of(value: Value) -> np.ndarray | None:
    """Return the data of a constant value, dequantized if needed; otherwise None."""
    if isinstance(value, Constant):
        return value.real
    return array_of(value)


def output_shape(call: relax.Call) -> Shape | None:
    """Return the static shape of the result of ``call``."""
    return static_shape(call)


def _step(bound: float, term: Term) -> int | None:
    info = np.iinfo(term.dtype)
    if math.isinf(bound):
        return int(info.min if bound < 0 else info.max)
    step = bound / float(term.scale) - int(term.shift)
    if step <= info.min or step >= info.max:
        return int(min(max(step, info.min), info.max))
    nearest = round(step)
    return nearest if abs(step - nearest) < 1e-5 else None

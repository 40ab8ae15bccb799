"""Emit Relax operators for values: dequantize to floats, or requantize.

before -> after, requantize of an accumulator (relu merges into the clip):
    quantize(relu(scale * (acc + bias)), out_scale, zero)
    -> astype(clip(add(round(multiply(astype(add(acc, bias), float32), scale / out_scale)),
                       zero), max(0, zero), 255), uint8)

The arithmetic is ONNX Runtime's: one float32 scale, round half to even, then the zero point.
Every operator is elementwise, so that FuseOps fuses the chain into the convolution's epilogue.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.transform.integer.values import (
    Concatenated,
    Constant,
    Linear,
    QuantParams,
    Term,
    Value,
    array_of,
)
from tvmopt.transform.multiply_by_reciprocal import reciprocal


class Emitter:
    """Emit operators into the function under construction in ``builder``."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self.builder = builder

    def emit(self, expr: relax.Expr, name: str = "") -> relax.Var:
        """Bind ``expr`` to a new variable."""
        return self.builder.emit(expr, name)

    def floats(self, value: Value) -> relax.Expr:
        """Return ``value`` as a float32 tensor, or as a tuple of them."""
        if isinstance(value, Linear):
            return self._clamp(self._sum(value, np.float32(1)), value.low, value.high)
        if isinstance(value, Constant):
            return relax.const(value.real, "float32")
        if isinstance(value, Concatenated):
            parts = relax.Tuple([self.floats(part) for part in value.parts])
            return self.emit(relax.op.concat(parts, value.axis))
        if isinstance(value, tuple):
            return relax.Tuple([self.floats(field) for field in value])
        return value

    def quantised(self, value: Value, params: QuantParams) -> relax.Expr:
        """Quantize ``value`` with ``params``; emit nothing when it already has these parameters."""
        if isinstance(value, Linear):
            return self._requantise(value, params)
        if isinstance(value, Concatenated):
            parts = relax.Tuple([self.quantised(part, params) for part in value.parts])
            return self.emit(relax.op.concat(parts, value.axis))
        if isinstance(value, Constant):
            return relax.const(params.apply(value.real), params.dtype)
        real = self.floats(value)
        known = array_of(real)
        if known is not None and known.dtype == np.float32:
            return relax.const(params.apply(known), params.dtype)
        return self._saturate(self._in_steps(real, params), params, *params.limits)

    def clipped(self, tensor: relax.Expr, low: int, high: int) -> relax.Expr:
        """Return an integer tensor clipped to ``[low, high]``."""
        info = np.iinfo(str(tensor.ty.dtype))
        if low <= info.min and high >= info.max:
            return tensor
        return self.emit(relax.op.clip(tensor, max(low, info.min), min(high, info.max)))

    def _in_steps(self, real: relax.Expr, params: QuantParams) -> relax.Expr:
        """Return ``real / scale``; a vector multiplication is 20 times as fast as a division."""
        factor = reciprocal(params.scale)
        if factor is None:
            return self.emit(relax.op.divide(real, number(params.scale, "float32")))
        return self.emit(relax.op.multiply(real, number(factor, "float32")))

    def _requantise(self, value: Linear, params: QuantParams) -> relax.Expr:
        if value.clamped and not params.per_tensor:
            return self.quantised(self.floats(value), params)
        low, high = (_bound(limit, params) for limit in (value.low, value.high))
        if _is_quantised(value, params):
            return self.clipped(value.terms[0].tensor, low, high)
        if value.accumulates or (len(value.terms) == 1 and not value.offset.any()):
            return self._saturate(self._sum(value, params.scale), params, low, high)
        steps = self.emit(relax.op.round(self._steps(value, params)))
        return self.emit(relax.op.astype(self.emit(relax.op.clip(steps, low, high)), params.dtype))

    def _steps(self, value: Linear, params: QuantParams) -> relax.Expr:
        """Return a sum of quantized tensors in units of the output scale, with one constant.

        ONNX Runtime adds quantized tensors in this way, with the zero point before rounding.
        """
        zeros = np.zeros((), np.float32)
        for term in value.terms:
            ratio = (term.scale / params.scale).astype(np.float32)
            zeros = zeros - ratio * term.shift.astype(np.float32)
        fixed = params.zero.astype(np.float32) - zeros + value.offset / params.scale
        total: relax.Expr | None = None
        for term in reversed(value.terms):
            ratio = (term.scale / params.scale).astype(np.float32)
            known = array_of(term.tensor)
            if known is not None:
                fixed = fixed + ratio * known.astype(np.float32)
                continue
            x = self.emit(relax.op.astype(term.tensor, "float32"))
            if (ratio != 1).any():
                x = self.emit(relax.op.multiply(x, number(ratio, "float32")))
            total = x if total is None else self.emit(relax.op.add(total, x))
        assert total is not None
        return self.emit(relax.op.add(total, number(fixed, "float32"))) if fixed.any() else total

    def _saturate(self, steps: relax.Expr, params: QuantParams, low: int, high: int) -> relax.Expr:
        steps = self.emit(relax.op.round(steps))
        if params.zero.any():
            steps = self.emit(relax.op.add(steps, number(params.zero, "float32")))
        return self.emit(relax.op.astype(self.emit(relax.op.clip(steps, low, high)), params.dtype))

    def _sum(self, value: Linear, unit: np.ndarray | np.float32) -> relax.Expr:
        """Return the sum of terms and offset in float32, in units of ``unit``."""
        total: relax.Expr | None = None
        for term in value.terms:
            x = self._scaled(term, unit)
            total = x if total is None else self.emit(relax.op.add(total, x))
        assert total is not None
        if value.offset.any():
            total = self.emit(relax.op.add(total, number(value.offset / unit, "float32")))
        return total

    def _scaled(self, term: Term, unit: np.ndarray | np.float32) -> relax.Expr:
        x = term.tensor
        known = array_of(x)
        if known is not None:
            real = (known.astype(np.float32) + term.shift) * (term.scale / unit)
            return number(real, "float32")
        if term.dtype != "int32":  # float32 holds the difference of two small integers exactly
            x = self.emit(relax.op.astype(x, "float32"))
            if term.shift.any():
                x = self.emit(relax.op.subtract(x, number(-term.shift, "float32")))
        else:
            if term.shift.any():
                x = self.emit(relax.op.add(x, number(term.shift, "int32")))
            x = self.emit(relax.op.astype(x, "float32"))
        scale = (term.scale / unit).astype(np.float32)
        if (scale != 1).any():
            x = self.emit(relax.op.multiply(x, number(scale, "float32")))
        return x

    def _clamp(self, x: relax.Expr, low: float, high: float) -> relax.Expr:
        if low == 0 and high == math.inf:
            return self.emit(relax.op.nn.relu(x))
        if low > -math.inf and high < math.inf:
            return self.emit(relax.op.clip(x, low, high))
        if low > -math.inf:
            return self.emit(relax.op.maximum(x, relax.const(low, "float32")))
        if high < math.inf:
            return self.emit(relax.op.minimum(x, relax.const(high, "float32")))
        return x


def number(array: np.ndarray, dtype: str) -> relax.Expr:
    """Return a constant; a uniform array becomes a scalar, which kernels hold as an immediate."""
    array = np.asarray(array)
    if array.size and (array == array.flat[0]).all():
        array = array.reshape(-1)[0].reshape(())
    return relax.const(array.astype(dtype), dtype)


def _is_quantised(value: Linear, params: QuantParams) -> bool:
    if len(value.terms) != 1 or value.offset.any():
        return False
    term = value.terms[0]
    return (
        term.dtype == params.dtype
        and np.array_equal(term.scale, params.scale)
        and np.array_equal(-term.shift, params.zero)
    )


def _bound(limit: float, params: QuantParams) -> int:
    """Return the quantized bound; rounding is monotone, so the clip may follow it."""
    low, high = params.limits
    if math.isinf(limit):
        return low if limit < 0 else high
    with np.errstate(over="ignore"):
        step = float(np.rint(np.float32(limit) / params.scale)) + float(params.zero)
    return int(min(max(step, low), high))

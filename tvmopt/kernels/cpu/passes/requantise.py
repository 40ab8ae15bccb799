"""Round and clip to eight bits with one addition, on any CPU that has vectors of float32.

The sum of a number and 1.5 * 2^23 is rounded to a whole number, ties to even, and its lowest byte
is that number's: no conversion of float to integer, no rounding instruction, and the vector is
narrowed once. Exact for whatever lies within 2^22, and the clip comes first.

Where a number is rounded and clipped to a byte only to be a float again, as at the sum of a
residual block, it never becomes a byte.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics.calls import called

_MAGIC = float(3 << 22)
_LIMIT = 1 << 22


def rewrite_requantise(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace roundings to a byte in ``func``; attributes are kept.

    Before -> after, with a zero point of 3::

        B[i] = Cast("uint8", max(min(round(A[i]) + 3.0, 255.0), 0.0))
        B[i] = Cast("uint8", reinterpret("uint32", max(min(A[i], 252.0), -3.0) + 12582912.0) + 3)

        B[i] = Cast("float32", Cast("uint8", max(min(round(A[i]), 255.0), 0.0))) * 0.1
        B[i] = max(min(round(A[i]), 255.0), 0.0) * 0.1

    The clip may come before the rounding because its bounds are whole numbers.
    """
    # Outer casts first: what stays a float must not have become a byte before.
    body = tvm_ffi.structural_map(func.body, (tirx.Cast, _on_cast), order="pre")
    return func.with_body(body)


def _on_cast(cast: tirx.Cast) -> ir.Expr:
    if str(cast.ty.dtype) == "float32" and isinstance(cast.value, tirx.Cast):
        number = _still_float(cast.value)
        return cast if number is None else number
    return _to_byte(cast)


def _still_float(narrow: tirx.Cast) -> ir.Expr | None:
    """The number that is cast to a byte, when the byte holds it exactly."""
    value, low, high = _clip(narrow.value)
    value, zero = _shift(value)
    row = dtypes.dtype(str(narrow.ty.dtype))
    is_byte = row.name in dtypes.BYTE_INTEGERS
    if not is_byte or str(value.ty.dtype) != "float32" or not _is_round(value):
        return None
    if low is None or high is None or low < row.lowest or high > row.highest:
        return None
    if not all(number.is_integer() for number in (low, high, zero)):
        return None  # a byte would be cut to a whole number
    return narrow.value


def _to_byte(cast: tirx.Cast) -> ir.Expr:
    """A cast of a rounded and clipped number to a byte; the cast itself where it is none."""
    if str(cast.ty.dtype) not in dtypes.BYTE_INTEGERS or str(cast.value.ty.dtype) != "float32":
        return cast
    value, low, high = _clip(cast.value)
    value, zero = _shift(value)
    if low is None or high is None or not _is_round(value):
        return cast
    bounds = low - zero, high - zero
    if any(not b.is_integer() or abs(b) > _LIMIT for b in (*bounds, zero)):
        return cast
    x = tirx.max(
        tirx.min(value.args[0], tirx.const(bounds[1], "float32")),
        tirx.const(bounds[0], "float32"),
    )
    bits = tirx.reinterpret("uint32", x + tirx.const(_MAGIC, "float32"))
    if zero:
        bits = bits + tirx.const(int(zero) % 256, "uint32")
    return bits.astype(str(cast.ty.dtype))


def _clip(value: ir.Expr) -> tuple[ir.Expr, float | None, float | None]:
    """What is clipped, and its bounds, each None where there is none."""
    low: float | None = None
    high: float | None = None
    while isinstance(value, tirx.Max | tirx.Min):
        bound = _number(value.b)
        if bound is None:
            break
        if isinstance(value, tirx.Max):
            low = bound if low is None else max(low, bound)
        else:
            high = bound if high is None else min(high, bound)
        value = value.a
    return value, low, high


def _shift(value: ir.Expr) -> tuple[ir.Expr, float]:
    """What a zero point is added to, and the zero point."""
    if isinstance(value, tirx.Add):
        number = _number(value.b)
        if number is not None:
            return value.a, number
    return value, 0.0


def _number(expr: ir.Expr) -> float | None:
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def _is_round(expr: ir.Expr) -> bool:
    return called(expr) == "nearbyint"

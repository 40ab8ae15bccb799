"""Requantize to 8 bits by magic-number rounding: one float32 addition rounds and converts.

Adding 1.5 * 2^23 rounds a float32 to an integer, ties to even, and the low byte of the bits is the
low byte of that integer. This needs no float-to-int conversion and no rounding instruction, and it
narrows the vector once. It is exact for magnitudes up to 2^22; the clip comes first.

A quantize-dequantize pair (as before the add of a residual block) stays a float32: subtracting
the number's bits gives the integer. TVM does not vectorise a loop that calls ``nearbyint``.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics.calls import called

_MAGIC = float(3 << 22)
_MAGIC_BITS = 0x4B400000  # of _MAGIC as a float32
_LIMIT = 1 << 22


def rewrite_requantise(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Rewrite the requantizations to 8 bits in ``func``; attributes are kept.

    Before -> after, with a zero point of 3::

        B[i] = Cast("uint8", max(min(round(A[i]) + 3.0, 255.0), 0.0))
        B[i] = Cast("uint8", reinterpret("uint32", max(min(A[i], 252.0), -3.0) + 12582912.0) + 3)

        B[i] = Cast("float32", Cast("uint8", max(min(round(A[i]) + 3.0, 255.0), 0.0))) * 0.1
        B[i] = Cast("float32", reinterpret("int32", max(min(A[i], 252.0), -3.0) + 12582912.0)
                               - (1262485504 - 3)) * 0.1

    The clip may precede the rounding because its bounds are integers.
    """
    # Outer casts first, so that a quantize-dequantize pair is found before its inner cast changes.
    body = tvm_ffi.structural_map(func.body, (tirx.Cast, _on_cast), order="pre")
    return func.with_body(body)


def _on_cast(cast: tirx.Cast) -> ir.Expr:
    if str(cast.ty.dtype) == "float32" and isinstance(cast.value, tirx.Cast):
        number = _still_float(cast.value)
        return cast if number is None else number
    return _to_byte(cast)


def _still_float(narrow: tirx.Cast) -> ir.Expr | None:
    """Return the float that ``narrow`` casts to 8 bits if the cast is exact; otherwise None."""
    value, low, high = _clip(narrow.value)
    value, zero = _shift(value)
    row = dtypes.dtype(str(narrow.ty.dtype))
    is_byte = row.name in dtypes.BYTE_INTEGERS
    if not is_byte or str(value.ty.dtype) != "float32" or not _is_round(value):
        return None
    if low is None or high is None or low < row.lowest or high > row.highest:
        return None
    if not all(number.is_integer() and abs(number) <= _LIMIT for number in (low, high, zero)):
        return None  # the cast would truncate a fraction
    rounded = _clipped(value.args[0], low - zero, high - zero) + tirx.const(_MAGIC, "float32")
    # Not a subtraction of floats, which TVM folds into the addition.
    integer = tirx.reinterpret("int32", rounded) - tirx.const(_MAGIC_BITS - int(zero), "int32")
    return integer.astype("float32")


def _to_byte(cast: tirx.Cast) -> ir.Expr:
    """Rewrite the cast of a rounded and clipped float to 8 bits; return other casts unchanged."""
    if str(cast.ty.dtype) not in dtypes.BYTE_INTEGERS or str(cast.value.ty.dtype) != "float32":
        return cast
    value, low, high = _clip(cast.value)
    value, zero = _shift(value)
    if low is None or high is None or not _is_round(value):
        return cast
    bounds = low - zero, high - zero
    if any(not b.is_integer() or abs(b) > _LIMIT for b in (*bounds, zero)):
        return cast
    x = _clipped(value.args[0], *bounds)
    bits = tirx.reinterpret("uint32", x + tirx.const(_MAGIC, "float32"))
    if zero:
        bits = bits + tirx.const(int(zero) % 256, "uint32")
    return bits.astype(str(cast.ty.dtype))


def _clipped(value: ir.Expr, low: float, high: float) -> ir.Expr:
    return tirx.max(tirx.min(value, tirx.const(high, "float32")), tirx.const(low, "float32"))


def _clip(value: ir.Expr) -> tuple[ir.Expr, float | None, float | None]:
    """Return the clipped expression with its lower and upper bounds; None without a bound."""
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
    """Return the expression without its zero point, and the zero point (0 without one)."""
    if isinstance(value, tirx.Add):
        number = _number(value.b)
        if number is not None:
            return value.a, number
    return value, 0.0


def _number(expr: ir.Expr) -> float | None:
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def _is_round(expr: ir.Expr) -> bool:
    return called(expr) == "nearbyint"

"""CUDA device functions of the attention kernel: exp2, maximum, quad shuffles."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.emit import const

_EXP2 = """
__forceinline__ __device__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"""
_LARGER = "__forceinline__ __device__ float larger_of(float a, float b) { return fmaxf(a, b); }\n"
_LARGEST = """
__forceinline__ __device__ int largest_bits(int a, float b, float c) {
  return max(max(a, __float_as_int(b)), __float_as_int(c));
}
"""
_BITS = "__forceinline__ __device__ float float_of_bits(int x) { return __int_as_float(x); }\n"
_ANY = """
__forceinline__ __device__ int any_differs(float a, float b, float from, float c, float d) {
  return __any_sync(0xffffffffu, a != from || b != from || c < 0.0f || d < 0.0f);
}
"""
_SHUFFLE = """
__forceinline__ __device__ float from_lane_xor(float x, int lane) {
  return __shfl_xor_sync(0xffffffffu, x, lane);
}
"""


def fast_exp2(x: Expr) -> Expr:
    """Return ``2 ** x`` (``ex2.approx.ftz``)."""
    return T.cuda.func_call("fast_exp2", x, source_code=_EXP2, return_type="float32")


def larger_of(a: Expr, b: Expr) -> Expr:
    """Return the larger number (``fmaxf``), and the other one of a NaN."""
    return T.cuda.func_call("larger_of", a, b, source_code=_LARGER, return_type="float32")


def largest_bits(a: Expr | int, b: Expr, c: Expr) -> Expr:
    """Return the maximum of an int32 and the bits of two floats, as int32 (``VIMNMX3``)."""
    a = const(a) if isinstance(a, int) else a
    return T.cuda.func_call("largest_bits", a, b, c, source_code=_LARGEST, return_type="int32")


def float_of_bits(x: Expr) -> Expr:
    """Return the float32 of these bits."""
    return T.cuda.func_call("float_of_bits", x, source_code=_BITS, return_type="float32")


def any_differs(pair: Sequence[Expr], value: float, sums: Sequence[Expr]) -> Expr:
    """Return 1 if one of two numbers of some lane of the warp differs from ``value``, else 0.

    Args:
        pair: The numbers.
        value: The value.
        sums: Two numbers that are not negative. ptxas computes them before the vote: otherwise it
            moves their additions behind all exponentials, with which they overlap.
    """
    arguments = [*pair, T.float32(value), *sums]
    return T.cuda.func_call("any_differs", *arguments, source_code=_ANY, return_type="int32")


def from_lane_xor(x: Expr, lane: int) -> Expr:
    """Return ``x`` of the lane whose index differs in the bits of ``lane``."""
    return T.cuda.func_call(
        "from_lane_xor", x, const(lane), source_code=_SHUFFLE, return_type="float32"
    )

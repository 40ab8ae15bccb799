"""Emit one ``vmaxps`` or ``vminps`` for a running extremum of widened 16-bit floats.

before -> after, on lowered functions after :mod:`tvmopt.kernels.passes.keep_nan`::

    Let x = reinterpret("float32x16", u32): Select(m > x, m, x)
    llvm.x86.avx512.max.ps.512(m, reinterpret("float32x16", u32))

LLVM moves the casts of the operands behind the select. It then selects among the bits, with a
compare into a mask and a blend for each element: twice the cycles of ``vmaxps``. Both return the
second operand if an operand is NaN or both are zero. Float32 elements need no change.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.device.cpu_of_target import cpu_of_target
from tvmopt.kernels.cpu.intrinsics.calls import called

_EXTREMA = {tirx.GT: "max", tirx.LT: "min"}
_NAMES = {
    4: "llvm.x86.sse.{}.ps",
    8: "llvm.x86.avx.{}.ps.256",
    16: "llvm.x86.avx512.{}.ps.512",
}
_CURRENT_ROUNDING = 4  # _MM_FROUND_CUR_DIRECTION, operand of the AVX-512 intrinsics
_FLOAT32_BITS = 32


def select_by_x86_extrema(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the lowered ``func`` with the instructions; unchanged on other CPUs."""
    found: list[tirx.Let] = []
    tvm_ffi.structural_walk(
        func.body, (tirx.Let, lambda let: found.append(let) if _selects(let) else None)
    )
    if not found:
        return func
    arch = cpu_of_target(func.attrs["target"])
    if arch.isa != "x86_64":
        return func

    def on_let(let: tirx.Let) -> ir.Expr:
        if not _selects(let) or _lanes(let) * _FLOAT32_BITS > arch.simd_bits:
            return let
        name = _NAMES[_lanes(let)].format(_EXTREMA[type(let.body.condition)])
        rounding = [tirx.const(_CURRENT_ROUNDING, "int32")] if _lanes(let) == max(_NAMES) else []
        return tirx.call_llvm_pure_intrin(
            str(let.value.ty.dtype), name, let.body.true_value, let.value, *rounding
        )

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Let, on_let), order="post"))


def _selects(let: tirx.Let) -> bool:
    """Return whether ``let`` is the larger, or smaller, of any value and a widened vector."""
    select = let.body
    if not _is_widened(let.value) or not isinstance(select, tirx.Select):
        return False
    condition, element = select.condition, select.false_value
    return (
        str(let.value.ty.dtype).startswith("float32x")
        and _lanes(let) in _NAMES
        and type(condition) in _EXTREMA
        and element.same_as(let.var)
        and condition.b.same_as(element)
        and tvm_ffi.structural_equal(condition.a, select.true_value)
    )


def _is_widened(value: ir.Expr) -> bool:
    """Return whether ``value`` is float32 of bfloat16's bits, or of float16."""
    if isinstance(value, tirx.Cast):
        return str(value.value.ty.dtype).startswith("float16")
    return called(value) == "reinterpret"


def _lanes(let: tirx.Let) -> int:
    return int(str(let.value.ty.dtype).partition("x")[2])

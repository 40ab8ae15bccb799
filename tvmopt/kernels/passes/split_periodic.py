"""Split loops whose variable is used modulo a power of two, as in ``Tile``.

before -> after::

    for v in range(16):                  for outer in range(4):
        y[v] = x[v % 4]                      for inner in range(4):
                                                 y[outer * 4 + inner] = x[inner]

TVM lowers the modulo to ``v & 3``. LLVM's loop vectoriser takes that for a value of two bits that
does not wrap around, if more loops lie around it. With vectors of 16 it then reads past the end of
``x`` (seen with the LLVM of TVM 0.27 on AVX-512; the case is in
tests/transform/test_split_periodic.py). The index of a split loop has no modulo.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx


def split_periodic_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function in which no serial loop's variable is taken modulo 2, 4, 8, ..."""

    def on_for(loop: tirx.For) -> tirx.For:
        extent = _constant(loop.extent)
        if loop.kind != tirx.ForKind.SERIAL or extent is None or _constant(loop.min) != 0:
            return loop
        periods = [p for p in _periods(loop) if p < extent and extent % p == 0]
        return _split(loop, extent, max(periods)) if periods else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, on_for), order="post"))


def _constant(value: ir.Expr) -> int | None:
    return int(value) if isinstance(value, tirx.IntImm) else None


def _periods(loop: tirx.For) -> set[int]:
    """Return the powers of two that the loop's variable is taken modulo."""
    found: set[int] = set()

    def note(op: tirx.FloorMod | tirx.Mod) -> None:
        period = _constant(op.b)
        if op.a.same_as(loop.loop_var) and period and period & (period - 1) == 0:
            found.add(period)

    tvm_ffi.structural_walk(loop.body, [(tirx.FloorMod, note), (tirx.Mod, note)])
    return found - {1}


def _split(loop: tirx.For, extent: int, period: int) -> tirx.For:
    var = loop.loop_var
    outer, inner = tirx.Var(f"{var.name}_outer", var.ty), tirx.Var(f"{var.name}_inner", var.ty)
    dtype = str(var.ty.dtype)

    def modulo(op: tirx.FloorMod | tirx.Mod) -> ir.Expr:
        return inner if op.a.same_as(var) and _constant(op.b) == period else op

    def quotient(op: tirx.FloorDiv | tirx.Div) -> ir.Expr:
        return outer if op.a.same_as(var) and _constant(op.b) == period else op

    changes = [
        (tirx.FloorMod, modulo), (tirx.Mod, modulo), (tirx.FloorDiv, quotient),
        (tirx.Div, quotient),
    ]  # fmt: skip
    body = tvm_ffi.structural_map(loop.body, changes, order="post")
    whole = outer * tirx.const(period, dtype) + inner
    body = tvm_ffi.structural_map(
        body, (tirx.Var, lambda v: whole if v.same_as(var) else v), order="post"
    )
    zero = tirx.const(0, dtype)
    nested = tirx.For(inner, zero, tirx.const(period, dtype), loop.kind, body)
    return tirx.For(
        outer, zero, tirx.const(extent // period, dtype), loop.kind, nested, None, loop.annotations
    )

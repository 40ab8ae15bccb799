"""Prevent fusion of a large concatenation with the arithmetic that computes a small part of it.

before -> after, a KV cache that grows by a token::

    new = rotary(k, cos, sin)              # (1, 8, 1, 128)
    cache = concat(past, new)              # (1, 8, 1025, 128)
    -> FuseOps then produces
    new = fused_rotary(k, cos, sin);  cache = concat(past, new)

Without this pass, FuseOps fuses both. Every thread that copies the cache then contains the
arithmetic behind a condition, which keeps it from copying vectors. The pass runs between
AnnotateTIROpPattern and FuseOps. It makes the concatenation opaque.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from tvmopt.kernels.scheduled import OPAQUE
from tvmopt.transform.broadcast_apart import with_pattern
from tvmopt.transform.integer.values import static_shape

_INJECTIVE = 2  # of TVM's OpPatternKind
# Least output for which a further launch pays, and most of it that is computed.
_LEAST_BYTES, _MOST_COMPUTED_SHARE = 1 << 20, 0.125
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)


@tvm.transform.module_pass(opt_level=0, name="ConcatApart")
class ConcatApart:
    """Prevent FuseOps from fusing a large concatenation with arithmetic."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        made = {
            binding.var: binding.value
            for block in mod["main"].body.blocks
            for binding in block.bindings
        }
        found = {var for var, value in made.items() if _is_apart(mod, value, made)}
        return with_pattern(mod, found, OPAQUE) if found else mod


_Made = dict[relax.Var, relax.Expr]


def _is_apart(mod: tvm.IRModule, value: relax.Expr, made: _Made) -> bool:
    """Return whether ``value`` concatenates much that exists and little that is computed."""
    func = _called(mod, value)
    if func is None or not value.args[0].name_hint.startswith("concatenate"):
        return False
    size = _bytes(value)
    computed = [arg for arg in value.args[1].fields if _is_computed(mod, arg, made)]
    return (
        size >= _LEAST_BYTES
        and bool(computed)
        and sum(map(_bytes, computed)) <= _MOST_COMPUTED_SHARE * size
    )


def _is_computed(mod: tvm.IRModule, expr: relax.Expr, made: _Made) -> bool:
    """Return whether FuseOps could fuse floating-point arithmetic that computes ``expr``."""
    left = [expr]
    while left:
        value = made.get(left.pop())
        func = None if value is None else _called(mod, value)
        if value is None or func is None or int(func.attrs.get("op_pattern", OPAQUE)) > _INJECTIVE:
            continue
        if _computes(func):
            return True
        left.extend(value.args[1].fields)
    return False


def _computes(func: tirx.PrimFunc) -> bool:
    """Return whether ``func`` adds, subtracts, multiplies or divides floating-point values."""
    found: list[ir.Expr] = []

    def visit(expr: ir.Expr) -> None:
        if "float" in str(expr.ty.dtype):
            found.append(expr)

    for kind in _ARITHMETIC:
        tvm_ffi.structural_walk(func.body, (kind, visit))
    return bool(found)


def _called(mod: tvm.IRModule, value: relax.Expr) -> tirx.PrimFunc | None:
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_tir":
        return None
    return mod[value.args[0]]


def _bytes(expr: relax.Expr) -> int:
    """Return the size of a tensor; 0 when its shape is not static."""
    shape = static_shape(expr)
    return 0 if shape is None else math.prod(shape) * int(tvm.DataType(str(expr.ty.dtype)).itemsize)

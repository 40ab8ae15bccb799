"""Bind operands in the bodies of ``Let`` expressions around the whole value of a store.

before -> after::

    y[i] = Let(f * x[i], f=1 / (1 + exp(-a[i])))
    y[i] = Let(Let(f * x_i, f=1 / (1 + exp(-a[i]))), x_i=x[i])

TVM's elimination of common subexpressions defines a variable for an index that such a body and the
index of a later store have in common, but only after the statement with the body, which uses it.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.analysis import variables
from tvmopt.kernels.passes.skip_padding import is_if_then_else


def load_before_lets(body: Any) -> Any:
    """Return ``body`` with float32 operands bound before the ``Let`` whose body has them.

    Operands that depend on variables of a ``Let``, or that a condition guards, stay in place.
    """
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _on_store), order="post")


def _on_store(store: tirx.BufferStore) -> tirx.BufferStore:
    defined: set[tirx.Var] = set()
    guarded: set[ir.TensorLoad] = set()
    operands: list[tuple[tirx.Var, ir.Expr]] = []

    def guard(expr: ir.Expr) -> None:
        if isinstance(expr, tirx.Select) or is_if_then_else(expr):
            tvm_ffi.structural_walk(expr, (ir.TensorLoad, guarded.add))

    def bind(expr: ir.Expr) -> ir.Expr:
        if str(expr.ty.dtype) != "float32" or isinstance(expr, tirx.Var):
            return expr
        loads = _found(expr, ir.TensorLoad)
        if not loads or guarded & set(loads) or defined & variables(expr):
            return expr
        if _found(expr, tirx.Let):
            return expr
        var = tirx.Var(loads[0].source.name, "float32")
        operands.append((var, expr))
        return var

    def on_let(let: tirx.Let) -> tirx.Let:
        body = tvm_ffi.structural_map(let.body, (ir.Expr, bind), order="pre")
        return let if body.same_as(let.body) else tirx.Let(let.var, let.value, body)

    value = store.value
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: defined.add(let.var)))
    if not defined:
        return store
    tvm_ffi.structural_walk(value, [(ir.Call, guard), (tirx.Select, guard)])
    value = tvm_ffi.structural_map(value, (tirx.Let, on_let), order="post")
    for var, operand in operands:
        value = tirx.Let(var, operand, value)
    return tirx.BufferStore(store.buffer, value, store.indices)


def _found(expr: ir.Expr, kind: type) -> list[Any]:
    """Return the nodes of a kind in ``expr``."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (kind, found.append))
    return found

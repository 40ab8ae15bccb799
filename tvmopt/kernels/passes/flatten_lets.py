"""Keep deeply nested ``Let`` expressions in local variables, one statement for each.

before -> after, of a value with ``_DEEP`` levels or more::

    y[i] = Let(t * t, t=Let(a + 1, a=x[i]))      a_local[0] = x[i]
                                                 t_local[0] = a_local[0] + 1
                                                 y[i] = t_local[0] * t_local[0]

TVM's code generator simplifies the value of each ``Let`` with those that are nested in it, so its
time triples with each level: a quantised convolution with Selu, 9 levels, took 29 s. It does the
same for ``Bind`` statements. LLVM keeps the local variables in registers.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.analysis import substitute, variables
from tvmopt.kernels.passes.skip_padding import is_if_then_else

_DEEP = 4


def flatten_lets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function whose stores hold no deeply nested ``Let``.

    The branches of ``if_then_else`` stay as they are, since only one of them is evaluated.
    """

    def on_store(store: tirx.BufferStore) -> tirx.Stmt:
        return _flattened(store) if _depth(store.value) >= _DEEP else store

    return func.with_body(
        tvm_ffi.structural_map(func.body, (tirx.BufferStore, on_store), order="post")
    )


def _depth(value: ir.Expr) -> int:
    """Return the length of the longest chain of ``Let`` of which each uses the one before."""
    values: dict[tirx.Var, ir.Expr] = {}
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: values.update({let.var: let.value})))
    levels: dict[tirx.Var, int] = {}

    def level(var: tirx.Var) -> int:
        if var not in levels:
            levels[var] = 1 + max(map(level, _variables(values[var]) & set(values)), default=0)
        return levels[var]

    return max(map(level, values), default=0)


def _variables(value: ir.Expr) -> set[tirx.Var]:
    """Return the variables in ``value``, with those that a ``Let`` in it defines."""
    found = variables(value)
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: found.add(let.var)))
    return found


def _flattened(store: tirx.BufferStore) -> tirx.Stmt:
    lazy: set[tirx.Var] = set()
    found: dict[tirx.Var, ir.Expr] = {}
    local: dict[tirx.Var, ir.Expr] = {}

    def keep(call: ir.Call) -> None:
        if is_if_then_else(call):
            for branch in call.args[1:]:
                tvm_ffi.structural_walk(branch, (tirx.Let, lambda let: lazy.add(let.var)))

    def lift(let: tirx.Let) -> ir.Expr:
        if let.var in lazy or "bool" in str(let.var.ty.dtype):
            return let
        found[let.var] = let.value
        local[let.var] = _local(let.var)
        return let.body

    tvm_ffi.structural_walk(store.value, (ir.Call, keep))
    value = tvm_ffi.structural_map(store.value, (tirx.Let, lift), order="post")
    if not found:  # every Let is in a branch
        return store
    statements: dict[tirx.Var, list[tirx.Stmt]] = {}

    def place(var: tirx.Var) -> None:
        if var in statements:
            return
        for needed in variables(found[var]) & set(found):
            place(needed)
        load = local[var]
        statements[var] = [
            tirx.AllocBuffer(load.source),
            tirx.BufferStore(load.source, substitute(found[var], local), load.indices),
        ]

    for var in found:
        place(var)
    stored = tirx.BufferStore(store.buffer, substitute(value, local), store.indices)
    return tirx.SeqStmt([*(stmt for pair in statements.values() for stmt in pair), stored])


def _local(var: tirx.Var) -> ir.TensorLoad:
    """Return the load of a new local buffer for the value of ``var``."""
    dtype = str(var.ty.dtype)
    scalar, _, lanes = dtype.partition("x")
    buffer = tirx.decl_buffer((int(lanes or 1),), scalar, f"{var.name}_local", scope="local")
    zero = tirx.const(0, "int32")
    return tirx.BufferLoad(
        buffer, [tirx.Ramp(zero, tirx.const(1, "int32"), int(lanes))] if lanes else [zero]
    )

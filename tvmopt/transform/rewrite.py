"""Apply a rewriting of expressions to a module, and remove what it leaves unused."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def rewrite_functions(mod: tvm.IRModule, rewriter: Any) -> tvm.IRModule:
    """Return the module of ``rewriter`` with every Relax function of ``mod`` rewritten.

    Args:
        mod: The module before.
        rewriter: A ``PyExprMutator`` of ``mod``.
    """
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()


def without_dead_code(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module without bindings and functions that no Relax function needs."""
    names = [var.name_hint for var, f in mod.functions_items() if isinstance(f, relax.Function)]
    return relax.transform.DeadCodeElimination(sorted(names))(mod)

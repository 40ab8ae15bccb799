"""Recognise calls of TensorIR functions in Relax: ``relax.call_tir(f, (x, y), out_ty=...)``."""

from __future__ import annotations

from typing import TypeGuard

import tvm
from tvm import relax


def is_call_tir(expr: object) -> TypeGuard[relax.Call]:
    """Return whether ``expr`` calls a TensorIR function.

    The call may have a third argument: sizes that the function takes besides its tensors.
    """
    return (
        isinstance(expr, relax.Call)
        and isinstance(expr.op, tvm.ir.Op)
        and expr.op.name == "relax.call_tir"
    )


def takes_tensors_only(expr: object) -> TypeGuard[relax.Call]:
    """Return whether ``expr`` calls a TensorIR function with a tuple of tensors and no sizes."""
    return is_call_tir(expr) and len(expr.args) == 2 and isinstance(expr.args[1], relax.Tuple)


def called_function(expr: object) -> str:
    """Return the name of the TensorIR function that ``expr`` calls; empty if it calls none."""
    return str(expr.args[0].name_hint) if is_call_tir(expr) else ""

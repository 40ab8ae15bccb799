"""Names of the operators and functions that TensorIR calls."""

from __future__ import annotations

import tvm_ffi
from tvm import ir

_LLVM = ("call_llvm_pure_intrin", "call_llvm_intrin")


def called(expr: ir.Expr) -> str:
    """Return the operator that ``expr`` calls, without dialect prefix; empty for other nodes."""
    if not isinstance(expr, ir.Call):
        return ""
    return str(getattr(expr.op, "name", "")).rpartition(".")[2]


def callees(node: tvm_ffi.Object) -> set[str]:
    """Return the extern functions that ``node`` calls, and LLVM intrinsics as ``llvm:<id>``."""
    found: set[str] = set()

    def on_call(call: ir.Call) -> None:
        name = called(call)
        if name == "call_extern":
            found.add(str(call.args[0].value))
        elif name in _LLVM:
            found.add(f"llvm:{int(call.args[0].value)}")

    tvm_ffi.structural_walk(node, (ir.Call, on_call), order="post")
    return found

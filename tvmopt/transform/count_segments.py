"""Count the segments of a module that ONNX Runtime runs."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.runtime.segments import ALLOCATING_FUNCTION, FUNCTION


def count_segments(mod: tvm.IRModule) -> int:
    """Return the number of calls of ONNX Runtime in the functions of ``mod``."""
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        function = expr.op
        if isinstance(function, tvm.ir.Op) and expr.args:  # call_dps_packed, call_pure_packed
            function = expr.args[0]
        if getattr(function, "global_symbol", "") in (FUNCTION, ALLOCATING_FUNCTION):
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return len(found)

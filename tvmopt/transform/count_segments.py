"""Count the segments of a module that ONNX Runtime runs."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.runtime.segments import FUNCTION


def count_segments(mod: tvm.IRModule) -> int:
    """Return the number of calls of ONNX Runtime in the functions of ``mod``."""
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        packed = tvm.ir.Op.get("relax.call_dps_packed")
        if isinstance(expr, relax.Call) and expr.op == packed:
            found.extend([expr] if str(expr.args[0].global_symbol) == FUNCTION else [])

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return len(found)

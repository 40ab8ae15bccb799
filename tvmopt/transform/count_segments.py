"""Count the segments of a module that ONNX Runtime runs."""

from __future__ import annotations

import tvm
from tvm import relax

from tvmopt.runtime.segments import ALLOCATING_FUNCTION, FUNCTION
from tvmopt.transform.called_name import called_name


def count_segments(mod: tvm.IRModule) -> int:
    """Return the number of calls of ONNX Runtime in the functions of ``mod``."""
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        segments = (FUNCTION, ALLOCATING_FUNCTION)
        if isinstance(expr, relax.Call) and called_name(expr) in segments:
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return len(found)

"""Count the arithmetic instructions of one block iteration."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.cpu.intrinsics.calls import called

# Instructions of a call, by name; of any other call, and of a division.
_CALLS = {
    "exp": 5.0, "exp2": 3.0, "log": 5.0, "sqrt": 4.0, "rsqrt": 3.0, "fabs": 1.0, "abs": 1.0,
    "sigmoid": 12.0, "tanh": 10.0, "erf": 20.0, "if_then_else": 3.0, "round": 2.0, "floor": 2.0,
    "reinterpret": 0.0, "likely": 0.0,
}  # fmt: skip
_OTHER, _DIVISION = 12.0, 8.0
_SIMPLE = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Cast, tirx.Select,
)  # fmt: skip
# A reduction of several values at once, such as argmax, compares and selects.
_STATEMENT = 1.0


def float_work(sch: s_tir.Schedule, name: str) -> float:
    """Return the instructions of one iteration of block ``name``, without loads and indices.

    It walks the block: call it once a function, not once a configuration.
    """
    total = 0.0

    def add(cost: float) -> None:
        nonlocal total
        total += cost

    def on_expr(expr: ir.Expr) -> None:
        if isinstance(expr, ir.Call):
            add(_CALLS.get(called(expr), _OTHER))
        elif "float" not in str(getattr(expr.ty, "dtype", "")):
            return
        elif isinstance(expr, tirx.Div):
            add(_DIVISION if not isinstance(expr.b, tirx.FloatImm) else 1.0)
        elif isinstance(expr, _SIMPLE):
            add(1.0)

    body = sch.get(sch.get_sblock(name)).body
    tvm_ffi.structural_walk(body, (ir.Expr, on_expr), order="post")
    return max(total, _STATEMENT)

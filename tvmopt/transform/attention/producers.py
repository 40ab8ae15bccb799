"""Reading a graph against the flow of data: who makes a value, and who else reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.precision.anchor_call import constant_data
from tvmopt.transform.uses import uses_of


class Producers:
    """Producers and users of the variables of one function.

    Args:
        main: A function; values made in branches are unknown.
    """

    def __init__(self, main: relax.Function) -> None:
        self._uses = uses_of(main)
        self._made = {
            binding.var: binding.value
            for block in main.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }

    def made(self, expr: relax.Expr) -> relax.Expr | None:
        """Return what is bound to ``expr`` if it is a variable; ``expr`` if it is not."""
        return self._made.get(expr) if isinstance(expr, relax.Var) else expr

    def call(self, expr: relax.Expr, *operators: str) -> relax.Call | None:
        """Return the call that makes ``expr``, if it calls one of ``operators``."""
        made = self.made(expr)
        if isinstance(made, relax.Call) and operator_name(made) in operators:
            return made
        return None

    def is_item(self, expr: relax.Expr) -> bool:
        """Return whether ``expr`` is an element of a tuple."""
        return isinstance(self._made.get(expr), relax.TupleGetItem)

    def constant(self, expr: relax.Expr) -> np.ndarray | None:
        """Return the values of a constant; None for others."""
        made = self._made.get(expr, expr) if isinstance(expr, relax.Var) else expr
        data = constant_data(made)
        return None if data is None else data.numpy()

    def scalar(self, expr: relax.Expr) -> float | None:
        """Return the value of a constant of one element; None for others."""
        data = self.constant(expr)
        return float(data.reshape(())) if data is not None and data.size == 1 else None

    def factored(self, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
        """Return ``x`` and ``c`` of ``x * c``, and ``x`` and ``1 / c`` of ``x / c``."""
        call = self.call(expr, "multiply", "divide")
        if call is None:
            return None
        value, factor = call.args[0], self.scalar(call.args[1])
        if operator_name(call) == "divide":
            factor = 1.0 / factor if factor else None
        elif factor is None:
            value, factor = call.args[1], self.scalar(call.args[0])
        if factor is None or not math.isfinite(factor):
            return None
        return (value, factor) if static_shape(value) == static_shape(expr) else None

    def tiled(self, expr: relax.Expr) -> relax.Expr | None:
        """Return what TVM's TensorIR function of Tile repeats."""
        call = self.call(expr, "call_tir")
        if call is None or not call.args[0].name_hint.startswith("tile"):
            return None
        [source] = call.args[1].fields
        return source

    def users(self, var: relax.Var) -> list[relax.Var | None]:
        """Return the variables whose bindings read ``var``; None stands for the result."""
        uses = self._uses.get(var, [])
        return [None if binding is None else binding.var for binding in uses]

    def only(self, var: relax.Expr, users: Sequence[relax.Var]) -> bool:
        """Return whether only the bindings of ``users`` read ``var``."""
        return isinstance(var, relax.Var) and set(self.users(var)) <= set(users)


def operator_name(call: relax.Call) -> str:
    """Return the name of a Relax operator without its prefix; empty for other calls."""
    if not isinstance(call.op, tvm.ir.Op):
        return ""
    return str(call.op.name).removeprefix("relax.")

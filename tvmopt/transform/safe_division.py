"""Integer division that cannot end the process.

before -> after: ``divide(a, b)`` of integers -> a division by ``where(b is 0 or -1, 1, b)``, with
``-a`` where b is -1 and 0 where b is 0; ``mod`` likewise, with 0 for both.

x86 stops a process that divides an integer by 0, or the least integer by -1. ONNX Runtime refuses
the first (and stops at the second for some types). Compiled code cannot refuse, so it returns 0,
as AArch64 does, and the least integer again. Constant divisors without 0 and -1 do not change.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.precision.anchor_call import constant_data
from tvmopt.transform.rewrite import rewrite_functions

_QUOTIENTS = {"relax.divide": relax.op.divide, "relax.floor_divide": relax.op.floor_divide}
_REMAINDERS = {"relax.mod": relax.op.mod, "relax.floor_mod": relax.op.floor_mod}


@tvm.transform.module_pass(opt_level=0, name="GuardDivision")
class GuardDivision:
    """Make every division of integers safe; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _DivisionGuard(mod))


@mutator
class _DivisionGuard(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name not in _QUOTIENTS and name not in _REMAINDERS:
            return call
        dtype = str(getattr(call.ty, "dtype", ""))
        divisor = call.args[1]
        bound = self.lookup_binding(divisor) if isinstance(divisor, relax.Var) else divisor
        if not isinstance(call.ty, relax.TensorType) or "int" not in dtype or _is_safe(bound):
            return call
        return _guarded(self.builder_, name, call.args[0], divisor, dtype)


def _is_safe(divisor: relax.Expr) -> bool:
    data = constant_data(divisor)
    return data is not None and not np.isin(data.numpy(), (0, -1)).any()


def _guarded(
    builder: relax.BlockBuilder, name: str, value: relax.Expr, divisor: relax.Expr, dtype: str
) -> relax.Expr:
    """Return ``value`` divided by ``divisor``, or the remainder."""
    emit = builder.emit
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    is_zero = emit(relax.op.equal(divisor, zero))
    safe = emit(relax.op.where(is_zero, one, divisor))
    if dtype.startswith("int"):
        is_minus_one = emit(relax.op.equal(divisor, relax.const(-1, dtype)))
        safe = emit(relax.op.where(is_minus_one, one, safe))
    if name in _REMAINDERS:
        # x % 1 is 0 already.
        return _REMAINDERS[name](value, safe)
    result = emit(_QUOTIENTS[name](value, safe))
    if dtype.startswith("int"):
        opposite = emit(relax.op.subtract(zero, value))
        result = emit(relax.op.where(is_minus_one, opposite, result))
    return relax.op.where(is_zero, zero, result)

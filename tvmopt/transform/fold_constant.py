"""Constant folding by TVM, where there is something to fold.

To find out whether a call can be folded, TVM's FoldConstant legalises every operator of a dataflow
block to TensorIR and throws nearly all of these functions away: an eighth of the time of a
conversion. Here the calls are looked at first.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst, Op

#: Operators that FoldConstant may replace although their argument is a variable.
_OF_SHAPES = ("relax.shape_of", "relax.shape_to_tensor", "relax.tensor_to_shape")


@tvm.transform.module_pass(opt_level=0, name="FoldConstantIfAny")
class FoldConstantIfAny:
    """TVM's FoldConstant; the module itself where no call has constant arguments alone."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to a module."""
        functions = [f for _, f in mod.functions_items() if isinstance(f, relax.Function)]
        if not any(map(_has_foldable_call, functions)):
            return mod
        return relax.transform.FoldConstant()(mod)


def _has_foldable_call(func: relax.Function) -> bool:
    """Return whether FoldConstant may change ``func``; a wrong yes costs time alone."""
    values = relax.analysis.get_var2val(func)
    found = False

    def is_constant(expr: relax.Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_constant, expr.fields))
        if isinstance(expr, relax.Var):
            return isinstance(values.get(expr), GenericConst)
        return not isinstance(expr, relax.Call | relax.TupleGetItem)

    def visit(expr: relax.Expr) -> None:
        nonlocal found
        if not found and isinstance(expr, relax.Call) and isinstance(expr.op, Op):
            found = expr.op.name in _OF_SHAPES or all(map(is_constant, expr.args))

    relax.analysis.post_order_visit(func, visit)
    return found

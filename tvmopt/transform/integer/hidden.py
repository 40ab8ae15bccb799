"""Protect quantized weights from constant folding.

before -> after: ``dequantize(const)`` -> ``dequantize(p)`` with a new parameter ``p`` during
simplification, then back. TVM folds any operator on constants, and a folded weight is a float.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.fold_numpy import FoldConstantNumpy
from tvmopt.transform.simplify import simplify

_PREFIX = "quantised_constant_"


@mutator
class _Hide(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.hidden: list[tuple[relax.Var, tvm.runtime.Tensor]] = []

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if not (isinstance(op.op, tvm.ir.Op) and op.op.name == "relax.dequantize"):
            return super().visit_call_(op)
        data = op.args[0]
        if isinstance(data, relax.Var):
            data = self.lookup_binding(data)
        if not isinstance(data, GenericConst):
            return super().visit_call_(op)
        var = relax.Var(f"{_PREFIX}{len(self.hidden)}", data.ty)
        self.hidden.append((var, data.value))
        return relax.Call(op.op, [var, *op.args[1:]], op.attrs, op.ty_args)


def simplify_quantised(mod: tvm.IRModule) -> tvm.IRModule:
    """Run :func:`tvmopt.transform.simplify.simplify`, but keep quantized constants."""
    with tvm.transform.PassContext(opt_level=3):
        mod = tvm.transform.Sequential(
            [relax.transform.CanonicalizeBindings(), FoldConstantNumpy()]
        )(mod)
    main = mod["main"]
    hide = _Hide(mod)
    body = hide.visit_expr(main.body)
    params = [*main.params, *(var for var, _ in hide.hidden)]
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    out["main"] = relax.Function(params, body, main.ret_ty, main.is_pure).with_attrs(
        dict(main.attrs.items()) if main.attrs else {}
    )
    out = simplify(out)
    constants = {var.name: tensor for var, tensor in hide.hidden}
    return relax.transform.BindParams("main", constants)(out) if constants else out

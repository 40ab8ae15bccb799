"""A product whose result is broadcast ends before: the broadcasting operator is another kernel's.

before -> after::

    gate = conv2d(pooled, w); y = multiply(x, clip(gate))   # gate: (1, 1, 1, c), x: (1, h, w, c)
    -> FuseOps makes of it
    gate = fused_conv2d_clip(pooled, w); y = multiply(x, gate)

FuseOps would make one function of all of it, which has no kernel: threads for every element of y
would each compute, or wait for, a small product. The pass runs between AnnotateTIROpPattern and
FuseOps, to which it says that such an operator follows no product.
"""

from __future__ import annotations

import collections
import math

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.integer.values import static_shape

# TVM's numbers for kinds of operators.
_BROADCAST, _INJECTIVE, _OUT_ELEMENTWISE_FUSABLE = 1, 2, 4
_ATTR = "op_pattern"


@tvm.transform.module_pass(opt_level=0, name="BroadcastApart")
class BroadcastApart:
    """Keep FuseOps from fusing a product with what broadcasts its result."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        main = mod["main"]
        found = _broadcasts(mod, main)
        if not found:
            return mod
        rewrite = _Mark(mod, found)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(main))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


def _broadcasts(mod: tvm.IRModule, main: relax.Function) -> set[relax.Var]:
    """Results of operators that broadcast a product's and cannot end a larger one's kernel."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    users = collections.Counter(
        var for binding in bindings for var in set(relax.analysis.free_vars(binding.value))
    )
    products: set[relax.Var] = set()
    found: set[relax.Var] = set()
    for binding in bindings:
        pattern = _pattern(mod, binding.value)
        if pattern == _OUT_ELEMENTWISE_FUSABLE:
            products.add(binding.var)
        size = _size(binding.var)
        if pattern is None or pattern > _BROADCAST or size is None:
            continue
        of = [arg for arg in binding.value.args[1].fields if arg in products]
        as_large = [arg for arg in of if _size(arg) == size]
        if as_large:
            products.add(binding.var)
        if len(as_large) < len(of) and not any(users[arg] == 1 for arg in as_large):
            found.add(binding.var)
    return found


def _pattern(mod: tvm.IRModule, value: relax.Expr) -> int | None:
    """TVM's kind of the function that ``value`` calls; None for what is no call of TensorIR."""
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return None
    func = mod[value.args[0]]
    return int(func.attrs[_ATTR]) if func.attrs and _ATTR in func.attrs else None


def _size(expr: relax.Expr) -> int | None:
    """Elements of a tensor; None where they are not known."""
    shape = static_shape(expr)
    return None if shape is None else math.prod(shape)


@mutator
class _Mark(PyExprMutator):
    """Calls of ``found`` go to functions that are marked injective."""

    def __init__(self, mod: tvm.IRModule, found: set[relax.Var]) -> None:
        super().__init__(mod)
        self._mod, self._found = mod, found

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._found:
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(binding.value)
        func = self._mod[binding.value.args[0]]
        assert isinstance(func, tirx.PrimFunc)
        name = binding.value.args[0].name_hint
        marked = self.builder_.add_func(func.with_attr(_ATTR, _INJECTIVE), name)
        value = relax.Call(call.op, [marked, *call.args[1:]], call.attrs, call.ty_args)
        if isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, self.builder_.emit(value))
        else:
            self.set_var_remap(binding.var, self.builder_.emit_output(value, binding.var.name))

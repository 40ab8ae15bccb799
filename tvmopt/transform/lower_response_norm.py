"""Lower LRN to its kernel on a CPU, where channels are innermost, or to operators of Relax.

before -> after::

    lv = astype(x, "float32")
    lv1 = call_dps_packed('tvmopt.response_norm {...}', (lv,))
    y = astype(lv1, "bfloat16")
    ->
    y = call_tir(response_norm, (x,))        # a CPU, axis -1; otherwise:
    lv1 = where(less(min(...), ...), nan, divide(lv, power(...)))
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.cpu_of_target import cpu_of_target
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.kernels.cpu.response_norm import response_norm_kernel
from tvmopt.kernels.response_norm import ResponseNorm
from tvmopt.kernels.scheduled import UNFINISHED_ATTR
from tvmopt.transform.response_norm import in_operators, response_norm_of

_WIDE = "float32"


@tvm.transform.module_pass(opt_level=0, name="LowerResponseNorms")
class LowerResponseNorms:
    """Replace every LRN by a call of its kernel, or by operators.

    Args:
        target: Target to compile for.
    """

    def __init__(self, target: tvm.target.Target | None) -> None:
        self._target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``; a call whose result is only narrowed is dead afterwards."""
        main = mod["main"]
        bound = {
            binding.var: binding.value
            for block in main.body.blocks
            for binding in block.bindings
            if isinstance(binding, relax.VarBinding)
        }
        if all(response_norm_of(value) is None for value in bound.values()):
            return mod
        rewrite = _LowerNorms(mod, self._target, bound)
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(main))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


@mutator
class _LowerNorms(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        target: tvm.target.Target | None,
        bound: dict[relax.Var, relax.Expr],
    ) -> None:
        super().__init__(mod)
        self._on_cpu = target is not None and target.kind.name == "llvm"
        self._target, self._bound = target, bound

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        norm = response_norm_of(op)
        if norm is not None:
            [data] = op.args[1].fields
            if self._has_kernel(norm, op):
                return self._kernel(norm, data, _WIDE)
            return in_operators(norm, self.visit_expr(data), self.builder_.emit)
        narrow = self._narrowed(op)
        if narrow is not None:
            norm = response_norm_of(narrow)
            if norm is not None and self._has_kernel(norm, narrow):
                return self._kernel(norm, narrow.args[1].fields[0], str(op.ty.dtype))
        return self.visit_expr_post_order(op)

    def _has_kernel(self, norm: ResponseNorm, call: relax.Call) -> bool:
        [data] = call.args[1].fields
        return self._on_cpu and norm.axis == len(data.ty.shape) - 1 and str(data.ty.dtype) == _WIDE

    def _narrowed(self, op: relax.Call) -> relax.Call | None:
        """Return the value that ``op`` casts to a 16-bit float."""
        if getattr(op.op, "name", "") != "relax.astype" or str(op.ty.dtype) not in HALF_FLOATS:
            return None
        return self._bound.get(op.args[0])

    def _kernel(self, norm: ResponseNorm, data: relax.Expr, dtype: str) -> relax.Expr:
        """Return a call of the kernel, which reads what ``data`` is a cast of."""
        made = self._bound.get(data)
        if isinstance(made, relax.Call) and getattr(made.op, "name", "") == "relax.astype":
            [source] = made.args
            if str(source.ty.dtype) in HALF_FLOATS:
                data = source
        x = self.visit_expr(data)
        shape = [int(extent) for extent in data.ty.shape]
        dtypes = (str(data.ty.dtype), dtype)
        kernel = response_norm_kernel(norm, shape, dtypes, cpu_of_target(self._target))
        function = self.builder_.add_func(
            kernel.with_attr(UNFINISHED_ATTR, True), "local_response_norm"
        )
        return relax.op.call_tir(function, [x], relax.TensorType(shape, dtype))

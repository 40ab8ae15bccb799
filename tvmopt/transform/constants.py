"""Move weights out of a module into a binary file of tensors, and back; the IR stays small."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

_SMALL = 16


@mutator
class _Extract(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.found: list[tuple[relax.Var, tvm.runtime.Tensor]] = []
        self._by_data: dict[int, relax.Var] = {}

    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        if math.prod(int(d) for d in op.value.shape) <= _SMALL:
            return op
        # A tensor that is used twice is one constant node, and must stay one parameter.
        key = op.__hash__()
        if key not in self._by_data:
            var = relax.Var(f"p{len(self.found)}", op.ty)
            self._by_data[key] = var
            self.found.append((var, op.value))
        return self._by_data[key]


def split_constants(
    mod: tvm.IRModule,
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Turn constants of ``main`` with more than 16 elements into parameters.

    before -> after: ``main(x) { matmul(x, const) }`` -> ``main(x, p0) { matmul(x, p0) }`` and
    ``{"p0": tensor}``. The new parameters follow the inputs; the attribute ``num_input`` counts
    the inputs only. A module that was split before stays as it is.
    """
    extract = _Extract(mod)
    main = mod["main"]
    body = extract.visit_expr(main.body)
    if not extract.found and main.attrs and "num_input" in main.attrs:
        return mod, {}
    params = [*main.params, *(var for var, _ in extract.found)]
    attrs = dict(main.attrs.items()) if main.attrs else {}
    attrs["num_input"] = len(main.params)
    main = relax.Function(params, body, main.ret_ty, main.is_pure).with_attrs(attrs)
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    out["main"] = main
    return out, {var.name: data for var, data in extract.found}


def bind_constants(mod: tvm.IRModule, params: dict[str, tvm.runtime.Tensor]) -> tvm.IRModule:
    """Bind parameters as constants again: the inverse of :func:`split_constants`."""
    return relax.transform.BindParams("main", params)(mod)

"""Mutators that replace the values of some bindings, by the variable that is bound."""

from __future__ import annotations

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator


class BoundCallMutator(PyExprMutator):
    """Replaces calls that are the value of a binding; derived classes need ``@mutator``."""

    _var: relax.Var | None = None

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """Return the new value of a binding; None to keep the call.

        Args:
            var: The variable that is bound, of the function before.
            call: Its value, of the function before; its arguments have not been visited.
        """
        raise NotImplementedError

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Visit a binding, whose call :meth:`replacement` sees."""
        self._var = binding.var
        super().visit_var_binding_(binding)
        self._var = None

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Visit a call, bound or within another expression."""
        var, self._var = self._var, None
        new = None if var is None else self.replacement(var, op)
        return self.visit_expr_post_order(op) if new is None else new


def rebind(rewriter: PyExprMutator, var: relax.Var, value: relax.Expr) -> relax.Var:
    """Emit ``value`` in place of the binding of ``var``; return the new variable."""
    if isinstance(var, relax.DataflowVar) or not rewriter.builder_.current_block_is_dataflow():
        new = rewriter.builder_.emit(value)
    else:
        new = rewriter.builder_.emit_output(value, var.name)
    rewriter.set_var_remap(var, new)
    return new

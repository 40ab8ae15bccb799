"""Mutators that replace the values of some bindings."""

from __future__ import annotations

import tvm
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


class AlternativeMutator(PyExprMutator):
    """Computes some calls in an alternative form; derived classes need ``@mutator``.

    The original value becomes a view of the alternative, and is dead where every user takes the
    alternative as well.

    Attributes:
        alternatives: Alternative of each new variable that has one.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.alternatives: dict[relax.Var, relax.Var] = {}

    def alternative(self, call: relax.Call) -> relax.Expr | None:
        """Return the alternative of a call's result; None where the call stays as it is.

        Args:
            call: The value of a binding before; its arguments have not been visited.
        """
        raise NotImplementedError

    def view(self, alternative: relax.Var, call: relax.Call) -> relax.Expr:
        """Return the result of ``call`` as a view of its alternative."""
        raise NotImplementedError

    def alternative_of(self, arg: relax.Expr) -> relax.Var | None:
        """Return the alternative of an operand; None if it has none."""
        return self.alternatives.get(self.visit_expr(arg)) if isinstance(arg, relax.Var) else None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Visit a binding; emit the alternative of its value, and then the view."""
        call = binding.value
        expr = self.alternative(call) if isinstance(call, relax.Call) else None
        if expr is None:
            super().visit_var_binding_(binding)
            return
        alternative = self.builder_.emit(expr)
        var = rebind(self, binding.var, self.view(alternative, call))
        self.alternatives[var] = alternative


def rebind(rewriter: PyExprMutator, var: relax.Var, value: relax.Expr) -> relax.Var:
    """Emit ``value`` in place of the binding of ``var``; return the new variable."""
    if isinstance(var, relax.DataflowVar) or not rewriter.builder_.current_block_is_dataflow():
        new = rewriter.builder_.emit(value)
    else:
        new = rewriter.builder_.emit_output(value, var.name)
    rewriter.set_var_remap(var, new)
    return new

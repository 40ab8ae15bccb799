"""Outline the branches of If as functions, since TVM fuses only what lies in a function.

before -> after::

    if c:                                    if c:
        with dataflow: a = x * x; b = ...        b = then_branch(x)
    ...

    def then_branch(x):
        with dataflow: a = x * x; b = ...

``relax.transform.InlinePrivateFunctions`` undoes it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.rewrite import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="OutlineBranches")
class OutlineBranches:
    """Make a private function of each branch of an If, also of nested ones."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all functions."""
        return rewrite_functions(mod, _Outline(mod))


@mutator
class _Outline(PyExprMutator):
    def visit_if_(self, op: relax.If) -> relax.Expr:
        cond = self.visit_expr(op.cond)
        then_branch = self._called(op.true_branch, "then_branch")
        return relax.If(cond, then_branch, self._called(op.false_branch, "else_branch"))

    def _called(self, branch: relax.SeqExpr, name: str) -> relax.SeqExpr:
        """Return a call of a new function with the branch as its body."""
        taken = list(relax.analysis.free_vars(branch))
        function = relax.Function(taken, branch, branch.body.ty, is_pure=True)
        function = self.visit_expr(relax.utils.copy_with_new_vars(function))  # nested ones
        made = self.builder_.add_func(function, name)
        return relax.SeqExpr([], relax.Call(made, [self.visit_expr(var) for var in taken]))

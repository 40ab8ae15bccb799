"""Compute the indices of gathers within the gathers.

before -> after, a negative index that counts from the end::

    i = where(less(position, 0), add(position, 1025), position)
    cos = take(cos_table, i); sin = take(sin_table, i)
    -> FuseOps then produces
    cos = fused_where_take(cos_table, position); sin = fused_where_take(sin_table, position)

Without this pass the indices are a kernel of a few integers: TVM marks ``take`` as opaque, and
FuseOps duplicates no operator with several users. The pass runs between AnnotateTIROpPattern and
FuseOps, on a GPU. It gives each gather a copy of its index arithmetic, and marks it as injective.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.bound_calls import rebind
from tvmopt.transform.broadcast_apart import INJECTIVE, pattern_of, with_pattern

_GATHER = "take"
# Most operators between an input and an index that a gather repeats.
_MOST_OPERATORS = 8


@tvm.transform.module_pass(opt_level=0, name="RecomputeIndices")
class RecomputeIndices:
    """Fuse index arithmetic with every gather of ``main`` that reads it."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        graph = Producers(mod["main"])
        chains = {}
        for block in mod["main"].body.blocks:
            if isinstance(block, relax.DataflowBlock):
                for binding in block.bindings:
                    chain = _index_arithmetic(mod, binding.value, graph)
                    if chain:
                        chains[binding.var] = chain
        if not chains:
            return mod
        rewrite = _Repeat(mod, chains)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        return with_pattern(rewrite.builder_.get(), set(rewrite.gathers), INJECTIVE)


def _index_arithmetic(mod: tvm.IRModule, value: relax.Expr, graph: Producers) -> list[relax.Var]:
    """Return the results of operators that compute the indices of a gather, producers first.

    Empty for other expressions, for indices that are not computed, and for long chains.
    """
    pattern = pattern_of(mod, value)
    if pattern is None or not value.args[0].name_hint.startswith(_GATHER):
        return []
    found: list[relax.Var] = []

    def visit(expr: relax.Expr) -> None:
        made = graph.made(expr) if isinstance(expr, relax.Var) else None
        if made is None or expr in found or not _is_integer(expr):
            return
        producer = pattern_of(mod, made)
        if producer is not None and producer <= INJECTIVE:
            for argument in made.args[1].fields:
                visit(argument)
            found.append(expr)

    *_, indices = value.args[1].fields
    visit(indices)
    return found if len(found) <= _MOST_OPERATORS else []


def _is_integer(expr: relax.Expr) -> bool:
    dtype = str(getattr(expr.ty, "dtype", ""))
    return "int" in dtype or dtype == "bool"


@mutator
class _Repeat(PyExprMutator):
    """Repeat the index arithmetic before each gather.

    Attributes:
        gathers: The results of the gathers, in the new function.
    """

    def __init__(self, mod: tvm.IRModule, chains: dict[relax.Var, list[relax.Var]]) -> None:
        super().__init__(mod)
        self.gathers: list[relax.Var] = []
        self._chains = chains
        self._values: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._values[binding.var] = binding.value
        chain = self._chains.get(binding.var)
        if chain is None:
            super().visit_var_binding_(binding)
            return
        copies: dict[relax.Var, relax.Var] = {}
        for var in chain:
            copies[var] = self.builder_.emit(self._copied(self._values[var], copies))
        call = self._copied(binding.value, copies)
        self.gathers.append(rebind(self, binding.var, call))

    def _copied(self, call: relax.Call, copies: dict[relax.Var, relax.Var]) -> relax.Call:
        """Return a call of the same function on copied arguments."""
        arguments = [
            copies[arg] if arg in copies else self.visit_expr(arg) for arg in call.args[1].fields
        ]
        callee, _, *others = call.args
        return relax.Call(
            call.op, [callee, relax.Tuple(arguments), *others], call.attrs, call.ty_args
        )

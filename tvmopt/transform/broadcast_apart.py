"""Prevent fusion of a matmul or convolution with an operator that broadcasts its result.

before -> after::

    gate = conv2d(pooled, w); y = multiply(x, clip(gate))   # gate: (1, 1, 1, c), x: (1, h, w, c)
    -> FuseOps then produces
    gate = fused_conv2d_clip(pooled, w); y = multiply(x, gate)

Without this pass, FuseOps fuses everything into one function with no efficient kernel: every thread
of ``y`` would compute, or wait for, a small matmul. The pass runs between AnnotateTIROpPattern and
FuseOps. It changes the pattern of the broadcasting operator to injective.
"""

from __future__ import annotations

import collections
import math

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.transform.bound_calls import rebind
from tvmopt.transform.integer.values import static_shape

# Values of TVM's OpPatternKind.
_BROADCAST, INJECTIVE, _OUT_ELEMENTWISE_FUSABLE = 1, 2, 4
_ATTR = "op_pattern"


@tvm.transform.module_pass(opt_level=0, name="BroadcastApart")
class BroadcastApart:
    """Prevent FuseOps from fusing an anchor with an operator that broadcasts its result."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        main = mod["main"]
        found = _broadcasts(mod, main)
        if not found:
            return mod
        return with_pattern(mod, found, INJECTIVE)


def with_pattern(mod: tvm.IRModule, calls: set[relax.Var], pattern: int) -> tvm.IRModule:
    """Return ``mod`` with the OpPatternKind of the functions changed that ``main`` calls.

    Args:
        mod: A module before FuseOps.
        calls: Variables of the results of the calls.
        pattern: The pattern.
    """
    rewrite = _Mark(mod, calls, pattern)
    rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


def _broadcasts(mod: tvm.IRModule, main: relax.Function) -> set[relax.Var]:
    """Return results of operators that broadcast an anchor's result and have no larger anchor."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    users = collections.Counter(
        var for binding in bindings for var in set(relax.analysis.free_vars(binding.value))
    )
    anchored: set[relax.Var] = set()
    found: set[relax.Var] = set()
    for binding in bindings:
        pattern = pattern_of(mod, binding.value)
        if pattern == _OUT_ELEMENTWISE_FUSABLE:
            anchored.add(binding.var)
        size = _size(binding.var)
        if pattern is None or pattern > _BROADCAST or size is None:
            continue
        of = [arg for arg in binding.value.args[1].fields if arg in anchored]
        as_large = [arg for arg in of if _size(arg) == size]
        if as_large:
            anchored.add(binding.var)
        if len(as_large) < len(of) and not any(users[arg] == 1 for arg in as_large):
            found.add(binding.var)
    return found


def pattern_of(mod: tvm.IRModule, value: relax.Expr) -> int | None:
    """Return the OpPatternKind of the called TensorIR function; None for other expressions."""
    if not is_call_tir(value):
        return None
    func = mod[value.args[0]]
    return int(func.attrs[_ATTR]) if func.attrs and _ATTR in func.attrs else None


def _size(expr: relax.Expr) -> int | None:
    """Return the number of elements of a tensor; None when its shape is not static."""
    shape = static_shape(expr)
    return None if shape is None else math.prod(shape)


@mutator
class _Mark(PyExprMutator):
    """Redirect calls bound to ``found`` to copies of their function with another pattern."""

    def __init__(self, mod: tvm.IRModule, found: set[relax.Var], pattern: int) -> None:
        super().__init__(mod)
        self._mod, self._found, self._pattern = mod, found, pattern

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._found:
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(binding.value)
        func = self._mod[binding.value.args[0]]
        assert isinstance(func, tirx.PrimFunc)
        name = binding.value.args[0].name_hint
        marked = self.builder_.add_func(func.with_attr(_ATTR, self._pattern), name)
        value = relax.Call(call.op, [marked, *call.args[1:]], call.attrs, call.ty_args)
        rebind(self, binding.var, value)

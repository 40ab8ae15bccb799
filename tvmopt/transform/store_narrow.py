"""Store the narrow tensor between two kernels: move widening casts from producer to consumers.

before -> after::

    x: float32 = fused_conv2d_requantise_dequantise(...);  y = fused_conv2d_add(..., x)
    ->
    x: uint8 = fused_conv2d_requantise(...);  y = fused_dequantise_conv2d_add(..., x)

FuseOps fuses every elementwise operator that follows a convolution, including the dequantize or
widening cast of its 8-bit result. The kernel then stores four bytes per element instead of one.
This pass runs between FuseOps and FuseTIR. It moves the cheap tail to the consumers, when all of
them can compute it while reading.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import takes_tensors_only
from tvmopt.transform.bound_calls import rebind
from tvmopt.transform.fused_kernel import (
    fused_function,
    fused_kernel,
    named,
    tensor_args,
    with_operands,
)
from tvmopt.transform.integer.values import static_shape

_ELEMENTWISE = 0
_REDUCE = 3
_LONGEST_TAIL = 4


@dataclasses.dataclass(frozen=True, eq=False)
class _Split:
    """A kernel split before its widening tail; ``kept`` is empty when the tail is all of it."""

    kept: tuple[relax.VarBinding, ...]
    narrow: relax.Var
    tail: tuple[relax.Call, ...]
    source: int | None  # index of the parameter that the tail reads, when nothing is kept
    whole: bool = False  # whether the wide tensor is stored as well, for other users


@tvm.transform.module_pass(opt_level=0, name="StoreNarrow")
class StoreNarrow:
    """Move widening tails of fused functions to their users; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        rewrite = _NarrowStores(mod)
        main = mod["main"]
        rewrite.plan(main)
        if not rewrite.splits:
            return mod
        rewrite.builder_.update_func(mod.get_global_var("main"), rewrite.visit_expr(main))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


@mutator
class _NarrowStores(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self.splits: dict[relax.Var, _Split] = {}
        self._narrow: dict[relax.Var, relax.Expr] = {}  # the stored narrow tensors

    def plan(self, main: relax.Function) -> None:
        """Find the tensors to store in a narrow dtype."""
        bindings = [b for block in main.body.blocks for b in block.bindings]
        users: dict[relax.Var, list[relax.Binding]] = {}
        for binding in bindings:
            for var in set(relax.analysis.free_vars(binding.value)):
                users.setdefault(var, []).append(binding)
        for binding in bindings:
            readers = users.get(binding.var, [])
            if not readers or not isinstance(binding.var, relax.DataflowVar):
                continue
            found = self._split(binding.value)
            able = [self._can_widen(r.value, binding.var) for r in readers]
            if found and (all(able) or (found.source is not None and any(able))):
                self.splits[binding.var] = dataclasses.replace(found, whole=not all(able))

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        split, call = self.splits.get(binding.var), binding.value
        args = tensor_args(call)
        tails = {
            i: self.splits[arg].tail
            for i, arg in enumerate(args)
            if isinstance(arg, relax.Var) and arg in self._narrow and self._can_widen(call, arg)
        }
        if split is None and not tails:
            super().visit_var_binding_(binding)
            return
        if split is not None and split.source is not None:
            source = args[split.source]
            narrow = self._narrow.get(source) if split.source in tails else None
            self._narrow[binding.var] = self.visit_expr(source) if narrow is None else narrow
            if narrow is not None:  # the producer has a tail, too
                tail = (*tails[split.source], *split.tail)
                self.splits[binding.var] = dataclasses.replace(split, tail=tail)
            if split.whole:
                super().visit_var_binding_(binding)
            return
        kernel = fused_kernel(self._mod, call)
        params, bindings = kernel.params, list(kernel.bindings)
        result = bindings[-1].var
        if split is not None:
            bindings, result = list(split.kept), split.narrow
        fresh = [
            self._narrow[arg] if i in tails else self.visit_expr(arg) for i, arg in enumerate(args)
        ]
        value = relax.Call(self._function(params, bindings, result, tails, fresh), fresh)
        if split is None:
            rebind(self, binding.var, value)
        else:
            self._narrow[binding.var] = self.builder_.emit(value)

    def _function(
        self,
        params: Sequence[relax.Var],
        bindings: list[relax.VarBinding],
        result: relax.Var,
        tails: dict[int, tuple[relax.Call, ...]],
        args: list[relax.Expr],
    ) -> tvm.ir.GlobalVar:
        """Add a fused function of ``bindings`` that first widens the parameters in ``tails``."""
        fresh = [relax.Var(p.name, arg.ty) for p, arg in zip(params, args, strict=True)]
        known: dict[relax.Expr, relax.Expr] = dict(zip(params, fresh, strict=True))
        made: list[relax.VarBinding] = []

        def bind(call: relax.Call, operands: list[relax.Expr], *, last: bool) -> relax.Var:
            new = self.builder_.normalize(with_operands(call, operands))
            kind = relax.Var if last else relax.DataflowVar
            made.append(relax.VarBinding(kind(f"lv{len(made)}", new.ty), new))
            return made[-1].var

        for i, tail in tails.items():
            for step in tail:
                known[params[i]] = bind(step, [known[params[i]]], last=False)
        for binding in bindings:
            operands = [known.get(arg, arg) for arg in binding.value.args[1].fields]
            last = binding.var.same_as(result)
            known[binding.var] = bind(binding.value, operands, last=last)
        out = known[result]
        body = relax.SeqExpr([relax.DataflowBlock(made)], out)
        function = relax.Function(fresh, body, out.ty).with_attrs({"Primitive": True})
        return self.builder_.add_func(function, named(made))

    def _split(self, expr: relax.Expr) -> _Split | None:
        """Split the called kernel before its cheap tail, at the narrowest tensor."""
        if fused_function(self._mod, expr) is None and not takes_tensors_only(expr):
            return None
        kernel = fused_kernel(self._mod, expr)
        params, bindings = kernel.params, kernel.bindings
        if not isinstance(bindings[-1].var.ty, relax.TensorType):
            return None
        made = {b.var: i for i, b in enumerate(bindings)}
        place = {p: i for i, p in enumerate(params)}
        best: _Split | None = None
        tail: tuple[relax.Call, ...] = ()
        var = bindings[-1].var
        bits = _bits(var)
        while var in made and len(tail) < _LONGEST_TAIL and self._is_cheap(bindings[made[var]]):
            call = bindings[made[var]].value
            var, tail = call.args[1].fields[0], (call, *tail)
            if not isinstance(var, relax.Var) or _bits(var) >= bits:
                continue
            bits = _bits(var)
            kept = tuple(bindings[: made[var] + 1]) if var in made else ()
            best = _Split(kept, var, tail, None if kept else place[var])
        return best

    def _is_cheap(self, binding: relax.VarBinding) -> bool:
        """Return whether a binding is elementwise in one operand, with plain arithmetic only."""
        operands = binding.value.args[1]
        if not isinstance(operands, relax.Tuple) or len(operands.fields) != 1:
            return False
        shape = static_shape(binding.var)
        if shape is None or static_shape(operands.fields[0]) != shape:
            return False
        if self._pattern(binding.value) != _ELEMENTWISE:
            return False
        function = self._mod[binding.value.args[0]]
        calls: list[tvm.ir.Call] = []
        tvm_ffi.structural_walk(function.body, (tvm.ir.Call, calls.append), order="post")
        return not any(str(getattr(c.op, "name", "")) in _COSTLY for c in calls)

    def _can_widen(self, expr: relax.Expr, var: relax.Var) -> bool:
        """Return whether a user can compute the tail while reading; windows read elements twice."""
        if takes_tensors_only(expr):
            return self._pattern(expr) <= _REDUCE and _reads(expr, var)
        function = fused_function(self._mod, expr)
        if function is None:
            return False
        for param, arg in zip(function.params, expr.args, strict=True):
            if not arg.same_as(var):
                continue
            for binding in function.body.blocks[0].bindings:
                if _reads(binding.value, param) and self._pattern(binding.value) > _REDUCE:
                    return False
        return True

    def _pattern(self, call: relax.Call) -> int:
        attrs = self._mod[call.args[0]].attrs or {}
        return int(attrs.get("op_pattern", 8))


_COSTLY = {f"tirx.{name}" for name in ("exp", "sigmoid", "tanh", "erf", "log", "pow", "sqrt")}


def _reads(call: relax.Call, var: relax.Var) -> bool:
    return any(arg.same_as(var) for arg in tensor_args(call))


def _bits(var: relax.Var) -> int:
    return int(tvm.runtime.DataType(str(var.ty.dtype)).bits)

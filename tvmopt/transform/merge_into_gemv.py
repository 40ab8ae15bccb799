"""Merge further work into GEMVs: an epilogue that combines slices, and RMSNorm of the activation.

before -> after, the feed-forward network of a decoder step::

    n = rms_norm(x, factors)
    y = matmul(n, w)                               # gate and up side by side
    out = fused_slice_slice_silu_multiply(y)
    ->
    out = fused_rms_norm_matmul_slice_slice_silu_multiply(x, factors, w)

A GEMV of few rows takes a fixed time besides that of its weight's bytes, and so does every small
kernel. FuseOps fuses no slices into a matmul, and no matmul into what precedes it. This pass runs
between FuseOps and FuseTIR. It merges functions where a kernel family takes the merged one. RMSNorm
is computed again by each GEMV that reads it; it stays where anything else reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import takes_tensors_only
from tvmopt.transform.bound_calls import rebind
from tvmopt.transform.fused_kernel import (
    FusedKernel,
    fused_function,
    fused_kernel,
    named,
    tensor_args,
    with_operands,
)
from tvmopt.transform.uses import uses_of

_INJECTIVE = 2  # of TVM's OpPatternKind
# Words of packed weights: only GEMVs that unpack weights take further work.
_PACKED = "uint32"


@dataclasses.dataclass(frozen=True, eq=False)
class _CalledKernel:
    """A kernel, its arguments, and the variable of its result."""

    kernel: FusedKernel
    args: tuple[relax.Expr, ...]
    var: relax.Var


@tvm.transform.module_pass(opt_level=0, name="MergeIntoGemv")
class MergeIntoGemv:
    """Merge epilogues and RMSNorm into GEMVs of ``main``; see the module docstring.

    Args:
        takes: Whether a kernel family computes a merged function.
    """

    def __init__(self, takes: Callable[[tirx.PrimFunc], bool]) -> None:
        self._takes = takes

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass."""
        for merges in (_epilogues, _norms):
            found = {call.var: call for call in merges(_KernelGraph(mod), self._takes)}
            if found:
                rewrite = _MergeKernels(mod, found)
                main = mod.get_global_var("main")
                rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
                mod = relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())
        return mod


class _KernelGraph:
    """The kernels of ``main`` and their readers."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.calls = {
            binding.var: _CalledKernel(
                fused_kernel(mod, binding.value), tuple(tensor_args(binding.value)), binding.var
            )
            for block in mod["main"].body.blocks
            for binding in block.bindings
            if fused_function(mod, binding.value) is not None or takes_tensors_only(binding.value)
        }
        self._uses = uses_of(mod["main"])

    def readers(self, var: relax.Var) -> list[_CalledKernel] | None:
        """Return the kernels that read ``var``; None where something else reads it."""
        uses = self._uses.get(var, [])
        found = [None if use is None else self.calls.get(use.var) for use in uses]
        return None if None in found else [call for call in found if call is not None]

    def is_injective(self, call: _CalledKernel) -> bool:
        """Return whether a kernel has elementwise operators, broadcasts and views only."""
        functions = [self.mod[binding.value.args[0]] for binding in call.kernel.bindings]
        return all(int((f.attrs or {}).get("op_pattern", 8)) <= _INJECTIVE for f in functions)


def _epilogues(
    graph: _KernelGraph, takes: Callable[[tirx.PrimFunc], bool]
) -> Iterator[_CalledKernel]:
    """Yield the GEMVs with the injective kernel that alone reads their result."""
    for gemv in graph.calls.values():
        readers = graph.readers(gemv.var) if _is_packed(gemv) else None
        if readers is None or len(readers) != 1 or not graph.is_injective(readers[0]):
            continue
        merged = _merged(gemv, readers[0])
        if takes(prim_func(graph.mod, merged.kernel)):
            yield merged


def _norms(graph: _KernelGraph, takes: Callable[[tirx.PrimFunc], bool]) -> Iterator[_CalledKernel]:
    """Yield the GEMVs with the reduction that computes their activation."""
    for norm in graph.calls.values():
        readers = graph.readers(norm.var)
        if not readers or not all(map(_is_packed, readers)):
            continue
        if _is_packed(norm) or graph.is_injective(norm):
            continue
        merged = [_merged(norm, gemv) for gemv in readers]
        if all(takes(prim_func(graph.mod, one.kernel)) for one in merged):
            yield from merged


def _is_packed(call: _CalledKernel) -> bool:
    return any(str(getattr(arg.ty, "dtype", "")) == _PACKED for arg in call.args)


def _merged(first: _CalledKernel, second: _CalledKernel) -> _CalledKernel:
    """Return one kernel that computes ``first`` and then ``second``, which reads it."""
    builder = relax.BlockBuilder()
    params: dict[relax.Expr, relax.Var] = {}  # by argument
    made: list[relax.VarBinding] = []
    results: dict[relax.Var, relax.Var] = {}
    for call in (first, second):
        known = {
            param: results[arg] if arg in results
            else params.setdefault(arg, relax.Var(f"p{len(params)}", arg.ty))
            for param, arg in zip(call.kernel.params, call.args, strict=True)
        }  # fmt: skip
        for binding in call.kernel.bindings:
            operands = [known.get(arg, arg) for arg in tensor_args(binding.value)]
            value = builder.normalize(with_operands(binding.value, operands))
            is_last = call is second and binding.same_as(call.kernel.bindings[-1])
            kind = relax.Var if is_last else relax.DataflowVar
            known[binding.var] = kind(f"lv{len(made)}", value.ty)
            made.append(relax.VarBinding(known[binding.var], value))
        results[call.var] = made[-1].var
    kernel = FusedKernel(tuple(params.values()), tuple(made))
    return _CalledKernel(kernel, tuple(params), second.var)


def _function(kernel: FusedKernel) -> relax.Function:
    """Return the fused function of ``kernel``."""
    out = kernel.bindings[-1].var
    body = relax.SeqExpr([relax.DataflowBlock(list(kernel.bindings))], out)
    return relax.Function(list(kernel.params), body, out.ty).with_attrs({"Primitive": True})


def prim_func(mod: tvm.IRModule, kernel: FusedKernel) -> tirx.PrimFunc:
    """Return the TensorIR function that FuseTIR makes of ``kernel``, whose calls are in ``mod``."""
    called = [binding.value.args[0] for binding in kernel.bindings]
    builder = relax.BlockBuilder(tvm.IRModule({var: mod[var] for var in called}))
    fused = builder.add_func(_function(kernel), "merged")
    inputs = [relax.Var(param.name, param.ty) for param in kernel.params]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(fused, inputs))
        builder.emit_func_output(out)
    fused_mod = relax.transform.FuseTIR()(builder.get())
    [value] = [b.value for block in fused_mod["main"].body.blocks for b in block.bindings][:1]
    return fused_mod[value.args[0]]


@mutator
class _MergeKernels(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, found: dict[relax.Var, _CalledKernel]) -> None:
        super().__init__(mod)
        self._found = found

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = self._found.get(binding.var)
        if call is None:
            super().visit_var_binding_(binding)
            return
        function = self.builder_.add_func(_function(call.kernel), named(call.kernel.bindings))
        value = relax.Call(function, [self.visit_expr(arg) for arg in call.args])
        rebind(self, binding.var, value)

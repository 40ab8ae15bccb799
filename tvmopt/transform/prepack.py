"""Weight prepacking: run the packing stages of schedules at build time.

before -> after: ``call_tir(conv2d, (x, const))`` whose first block packs the constant ->
``call_tir(conv2d_prepacked, (x, const'))`` with the packed constant.
"""

from __future__ import annotations

import hashlib
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.kernels.cpu.common.nest import packing_blocks

_SUFFIX = "_weight_prepack"


def prepack(mod: tvm.IRModule) -> tvm.IRModule:
    """Split weight packing from scheduled functions and run it on this machine.

    Packing only copies data, so the module may target another CPU.

    Args:
        mod: Module of scheduled functions.
    """
    others = {
        var: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not packing_blocks(func)
    }
    functions = {var: func for var, func in mod.functions_items() if var not in others}
    if not any(isinstance(func, tirx.PrimFunc) for func in functions.values()):
        return mod
    # TVM's pass fails on functions without blocks, such as top-k and scatter.
    split = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(functions, mod.attrs))
    split.update(tvm.IRModule(others))
    packers = {
        var.name_hint: func.with_attr("global_symbol", var.name_hint)
        for var, func in split.functions_items()
        if isinstance(func, tirx.PrimFunc) and _SUFFIX in var.name_hint
    }
    with tvm.transform.PassContext(opt_level=3):
        # Each packing function runs once: optimising it takes longer than it runs.
        once = tvm.target.Target({"kind": "llvm", "opt-level": 0})
        compiled = tvm.compile(tvm.IRModule(packers), once)
    folded = _FoldWeights(split, compiled, packers)
    entries = []
    for var, func in split.functions_items():
        if isinstance(func, relax.Function):
            folded.builder_.update_func(var, folded.visit_expr(func))
            entries.append(var.name_hint)
    return relax.transform.DeadCodeElimination(sorted(entries))(folded.builder_.get())


@mutator
class _FoldWeights(PyExprMutator):
    """Replace calls of packing functions by their results."""

    def __init__(self, mod: tvm.IRModule, compiled: Any, packers: dict[str, Any]) -> None:
        super().__init__(mod)
        self._compiled = compiled
        self._packers = packers
        self._packed: dict[Any, relax.Expr] = {}

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not is_call_tir(call):
            return call
        name = call.args[0].name_hint
        if name not in self._packers:
            return call
        inputs = [self._constant(arg) for arg in call.args[1].fields]
        if any(data is None for data in inputs):
            return call
        buffers = self._packers[name].params[len(inputs) :]
        outputs = [
            tvm.runtime.empty(tuple(int(e) for e in buffer.shape), str(buffer.dtype))
            for buffer in buffers
        ]
        self._compiled[name](*inputs, *outputs)
        packed = [self._unique(out) for out in outputs]
        return packed[0] if len(packed) == 1 else relax.Tuple(packed)

    def _unique(self, data: tvm.runtime.Tensor) -> relax.Expr:
        """Return the constant of ``data``; layers that share a weight share the packed constant."""
        array = data.numpy()
        key = (array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).digest())
        if key not in self._packed:
            self._packed[key] = relax.const(data)
        return self._packed[key]

    def _constant(self, expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr) or expr
        return expr.value if isinstance(expr, GenericConst) else None

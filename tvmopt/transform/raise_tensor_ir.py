"""Raise calls of TensorIR functions to the equivalent Relax operators.

before -> after: ``call_tir(maximum, (x, c))`` -> ``maximum(x, c)``, likewise ``minimum`` and
``pad``. TVM's ONNX importer emits Clip and Pad as TensorIR, which layout rules cannot handle.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import takes_tensors_only

_NUMBERED = re.compile(r"_*\d*$")
_BINARY: dict[str, tuple[Callable[..., te.Tensor], Callable[..., relax.Expr]]] = {
    "maximum": (topi.maximum, relax.op.maximum),
    "minimum": (topi.minimum, relax.op.minimum),
}


class _Recognise:
    """Recognise functions by comparing them with TVM's own TensorIR of an operator.

    Args:
        mod: The module that holds the functions.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._known: dict[str, Callable[..., relax.Expr] | None] = {}

    def __call__(self, call: relax.Call) -> relax.Call:
        """Return the operator equivalent to ``call``, or ``call`` itself."""
        if not takes_tensors_only(call):
            return call
        name = call.args[0].name_hint
        if name not in self._known:
            self._known[name] = self._recognise(self._mod[name], name)
        make = self._known[name]
        return call if make is None else make(*call.args[1].fields)

    def _recognise(self, func: tirx.PrimFunc, name: str) -> Callable[..., relax.Expr] | None:
        stem = _NUMBERED.sub("", name)
        buffers = list(func.params)
        if not all(_static(buffer) for buffer in buffers):
            return None
        if stem in _BINARY and len(buffers) == 3:
            compute, op = _BINARY[stem]
            return op if _equal(func, buffers[:2], compute) else None
        if stem == "pad" and len(buffers) == 2:
            return _pad(func, buffers[0], buffers[1])
        return None


def _pad(
    func: tirx.PrimFunc, data: tirx.Buffer, out: tirx.Buffer
) -> Callable[..., relax.Expr] | None:
    block = _block(func)
    loads: list[tvm.ir.TensorLoad] = []
    values: list[tirx.FloatImm | tirx.IntImm] = []
    if block is None or not isinstance(block.body, tirx.BufferStore):
        return None
    tvm_ffi.structural_walk(block.body, (tvm.ir.TensorLoad, loads.append), order="post")
    if len(loads) != 1:
        return None
    analyzer = tvm.sym.Analyzer()
    before = []
    for index, axis in zip(loads[0].indices, block.iter_vars, strict=True):
        offset = analyzer.simplify(axis.var - index)
        if not isinstance(offset, tirx.IntImm):
            return None
        before.append(int(offset))
    sizes = [(int(d), int(o)) for d, o in zip(data.shape, out.shape, strict=True)]
    after = [o - d - b for (d, o), b in zip(sizes, before, strict=True)]
    value = block.body.value
    if isinstance(value, tvm.ir.Call) and value.op.name.endswith("if_then_else"):
        values = [value.args[2]]
    fill = float(values[0].value) if values and hasattr(values[0], "value") else 0.0
    low, high = ([tirx.IntImm("int64", w) for w in side] for side in (before, after))
    if not _equal(func, [data], lambda x: topi.nn.pad(x, low, high, fill)):
        return None
    width = [w for pair in zip(before, after, strict=True) for w in pair]
    return lambda x: relax.op.nn.pad(x, width, "constant", fill)


def _block(func: tirx.PrimFunc) -> tvm.s_tir.SBlock | None:
    blocks: list[tvm.s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append), order="post")
    leaves = [block for block in blocks if block.name_hint != "root"]
    return leaves[0] if len(leaves) == 1 else None


@mutator
class _Raise(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._recognise = _Recognise(mod)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        return self._recognise(call) if isinstance(call.op, tvm.ir.Op) else call


def raise_tensor_ir(mod: tvm.IRModule) -> tvm.IRModule:
    """Return ``mod`` with all recognised calls raised; see the module docstring."""
    if not any(isinstance(func, tirx.PrimFunc) for _, func in mod.functions_items()):
        return mod
    raising = _Raise(mod)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            raising.builder_.update_func(var, raising.visit_expr(func))
    return raising.builder_.get()


@tvm.transform.module_pass(opt_level=0, name="RaiseTensorIR")
class RaiseTensorIR:
    """:func:`raise_tensor_ir` as a pass."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return raise_tensor_ir(mod)


def _static(buffer: object) -> bool:
    dims = getattr(buffer, "shape", None)
    return dims is not None and all(isinstance(d, tirx.IntImm) for d in dims)


def _equal(
    func: tirx.PrimFunc, inputs: list[tirx.Buffer], compute: Callable[..., te.Tensor]
) -> bool:
    """Return whether ``func`` computes the same elements as ``compute`` on its inputs."""
    tensors = [te.placeholder(b.shape, str(b.dtype), b.name) for b in inputs]
    wanted = _block(te.create_prim_func([*tensors, compute(*tensors)]))
    block = _block(func)
    # Iterators are not compared: one function has 64-bit bounds, the other 32-bit bounds.
    return (
        block is not None
        and wanted is not None
        and bool(tvm_ffi.structural_equal(block.body, wanted.body, map_free_vars=True))
    )

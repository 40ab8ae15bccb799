"""Weight-only int4: packed weights of matmuls, unpacked in a GPU's kernel or before compilation.

before -> after, on a GPU: unpacking and scaling are part of the K loop::

    w = call_dps_packed("tvmopt.int4_weight", (words, scales, zero_point))
    y = matmul(x, w)
    ->
    y = call_tir(matmul_int4, (x, words, scales))

before -> after, on a CPU, where no kernel unpacks int4: ``w`` -> a dense constant.

A packed function represents the weight, because constant folding would replace a TensorIR function
by its result.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device import dtypes

#: Weights of a 32-bit word; the first is in its lowest bits.
WEIGHTS_PER_WORD = 8
_NAME = "tvmopt.int4_weight"


@dataclasses.dataclass(frozen=True, eq=False)
class Int4Weight:
    """A packed weight; fields as the arguments of :func:`int4_weight`."""

    words: np.ndarray
    scales: np.ndarray
    zero_point: int


def int4_weight(words: np.ndarray, scales: np.ndarray, zero_point: int) -> relax.Call:
    """Return the weight ``W[k, n] = (q[n, k] - zero_point) * scales[n, k // block]``, of (K, N).

    Args:
        words: Packed ``q``, uint32 (N, K // 8).
        scales: (N, K // block); their dtype is the weight's.
        zero_point: Zero point of all blocks.
    """
    dtype = str(scales.dtype)
    shape = (words.shape[1] * WEIGHTS_PER_WORD, words.shape[0])
    args = [relax.const(words), relax.const(scales, dtype), relax.const(zero_point, "int32")]
    return relax.op.call_dps_packed(_NAME, relax.Tuple(args), relax.TensorType(shape, dtype))


def dequantized(words: np.ndarray, scales: np.ndarray, zero_points: np.ndarray) -> np.ndarray:
    """Return the weight (K, N) in the dtype of ``scales``.

    Args:
        words: Packed weights, uint32 (N, K // 8).
        scales: (N, K // block).
        zero_points: Broadcasts to ``scales``.
    """
    shifts = 4 * np.arange(WEIGHTS_PER_WORD, dtype="uint32")
    values = (words[..., None] >> shifts & 15).reshape(*scales.shape, -1).astype("float32")
    weight = (values - zero_points[..., None]) * scales[..., None].astype("float32")
    return np.ascontiguousarray(weight.reshape(len(words), -1).T.astype(scales.dtype))


def matmul_int4(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Legalize a matmul with an int4 weight; return None for others."""
    x, weight = call.args
    bound = builder.lookup_binding(weight) if isinstance(weight, relax.Var) else weight
    found = packed_weight(bound)
    if found is None:
        return None
    dtype, zero_point = str(found.scales.dtype), found.zero_point

    def multiply(x: te.Tensor, words: te.Tensor, scales: te.Tensor) -> te.Tensor:
        count, blocks = (int(extent) for extent in scales.shape)
        depth = tirx.IntImm("int64", int(words.shape[1]) * WEIGHTS_PER_WORD)
        block = int(depth) // blocks

        def unpacked(n: tirx.Var, k: tirx.Var) -> Any:
            shift = (k % WEIGHTS_PER_WORD * 4).astype("uint32")
            value = words[n, k // WEIGHTS_PER_WORD] >> shift & tirx.const(15, "uint32")
            return (value.astype(dtype) - tirx.const(zero_point, dtype)) * scales[n, k // block]

        weight = te.compute((count, depth), unpacked, name="unpacked")
        k = te.reduce_axis((tirx.IntImm("int64", 0), depth), "k")

        def element(*at: tirx.Var) -> Any:
            product = x[(*at[:-1], k)].astype("float32") * weight[at[-1], k].astype("float32")
            return te.sum(product, axis=k)

        total = te.compute((*x.shape[:-1], count), element, name="matmul")
        out = str(call.ty.dtype)
        if out == "float32":
            return total
        return te.compute(total.shape, lambda *at: total(*at).astype(out), name="cast")

    operands = [x, relax.const(found.words), relax.const(found.scales, dtype)]
    return builder.call_te(multiply, *operands, primfunc_name_hint="matmul_int4")


def packed_weight(expr: relax.Expr | None) -> Int4Weight | None:
    """Return the weight that an :func:`int4_weight` call represents; None for others."""
    if not isinstance(expr, relax.Call) or getattr(expr.op, "name", "") != "relax.call_dps_packed":
        return None
    if str(expr.args[0].global_symbol) != _NAME:
        return None
    words, scales, zero_point = (
        field.value.numpy() for field in expr.args[1].fields if isinstance(field, GenericConst)
    )
    return Int4Weight(words, scales, int(zero_point))


@mutator
class _Unpack(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, on_gpu: bool) -> None:
        super().__init__(mod)
        self._on_gpu = on_gpu

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not self._on_gpu:
            found = packed_weight(call)
            if found is None:
                return call
            dense = dequantized(found.words, found.scales, np.array([found.zero_point]))
            return relax.const(dense, found.scales.dtype)
        if getattr(call.op, "name", "") == "relax.astype" and isinstance(call.args[0], relax.Var):
            found = packed_weight(self.lookup_binding(call.args[0]))
            if found is not None:
                narrow = found.scales.astype(dtypes.dtype(str(call.attrs.dtype)).numpy)
                return int4_weight(found.words, narrow, found.zero_point)
        return call


@tvm.transform.module_pass(opt_level=0, name="UnpackInt4Weights")
class UnpackInt4Weights:
    """Dequantize int4 weights for a CPU; for a GPU, cast their scales instead of the weights.

    Args:
        on_gpu: Whether the target is a GPU.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        unpack = _Unpack(mod, self._on_gpu)
        main = unpack.visit_expr(mod["main"])
        unpack.builder_.update_func(mod.get_global_var("main"), main)
        return unpack.builder_.get()

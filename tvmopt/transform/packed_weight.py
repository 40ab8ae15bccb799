"""Weight-only int4 and int8: weights of matmuls, unpacked in a GPU's kernel or before compilation.

before -> after, on a GPU: unpacking and scaling are part of the K loop::

    w = call_dps_packed("tvmopt.packed_weight", (values, scales, zero_points))
    y = matmul(x, w)
    ->
    y = call_tir(matmul_int4, (x, values, scales))

before -> after, on a CPU, where no kernel unpacks weights: ``w`` -> a dense constant.

A packed function represents the weight, because constant folding would replace a TensorIR function
by its result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device import dtypes

#: 4-bit weights of a 32-bit word; the first is in its lowest bits.
WEIGHTS_PER_WORD = 8
_NAME = "tvmopt.packed_weight"


@dataclasses.dataclass(frozen=True, eq=False)
class PackedWeight:
    """The weight ``W[k, n] = (q[n, k] - zero[n, b]) * scales[n, b]`` with ``b = k // block``.

    Attributes:
        values: ``q``: uint32 (N, K // 8), eight values of 4 bits a word; or uint8 (N, K).
        scales: (N, K // block); their dtype is the weight's.
        zero_points: (N, K // block), or (1, 1) where all blocks have the same; float32.
    """

    values: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return 4 if self.values.dtype == np.uint32 else 8

    @property
    def depth(self) -> int:
        """K."""
        return int(self.values.shape[1]) * (WEIGHTS_PER_WORD if self.bits == 4 else 1)

    def kind(self) -> tuple[object, ...]:
        """Return a key that is equal for weights that :func:`side_by_side` takes."""
        zero = float(self.zero_points[0, 0]) if self.zero_points.size == 1 else None
        return self.bits, self.scales.shape[1], str(self.scales.dtype), zero

    def call(self) -> relax.Call:
        """Return the call that represents the weight, (K, N), in a module."""
        dtype = str(self.scales.dtype)
        shape = (self.depth, self.values.shape[0])
        fields = [relax.const(self.values), relax.const(self.scales, dtype)]
        fields.append(relax.const(self.zero_points.astype("float32")))
        return relax.op.call_dps_packed(_NAME, relax.Tuple(fields), relax.TensorType(shape, dtype))

    def dense(self) -> np.ndarray:
        """Return the weight (K, N) in the dtype of the scales."""
        values = self.values
        if self.bits == 4:
            shifts = 4 * np.arange(WEIGHTS_PER_WORD, dtype="uint32")
            values = values[..., None] >> shifts & 15
        blocks = values.reshape(*self.scales.shape, -1).astype("float32")
        weight = (blocks - self.zero_points[..., None]) * self.scales[..., None].astype("float32")
        return np.ascontiguousarray(
            weight.reshape(len(self.values), -1).T.astype(self.scales.dtype)
        )


def side_by_side(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Return weights of the same kind as one, beside each other along N."""
    zeros = [weight.zero_points for weight in weights]
    return PackedWeight(
        np.concatenate([weight.values for weight in weights]),
        np.concatenate([weight.scales for weight in weights]),
        zeros[0] if zeros[0].size == 1 else np.concatenate(zeros),
    )


def packed_weight(expr: relax.Expr | None) -> PackedWeight | None:
    """Return the weight that a call of :meth:`PackedWeight.call` represents; None for others."""
    if not isinstance(expr, relax.Call) or getattr(expr.op, "name", "") != "relax.call_dps_packed":
        return None
    if str(expr.args[0].global_symbol) != _NAME:
        return None
    return PackedWeight(
        *(field.value.numpy() for field in expr.args[1].fields if isinstance(field, GenericConst))
    )


def matmul_packed(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Legalize a matmul with a packed weight; return None for others."""
    x, weight = call.args
    bound = builder.lookup_binding(weight) if isinstance(weight, relax.Var) else weight
    found = packed_weight(bound)
    if found is None:
        return None
    dtype, bits, depth = str(found.scales.dtype), found.bits, found.depth
    single = float(found.zero_points[0, 0]) if found.zero_points.size == 1 else None

    def multiply(x: te.Tensor, values: te.Tensor, scales: te.Tensor, *zeros: te.Tensor) -> Any:
        count, blocks = (int(extent) for extent in scales.shape)
        block = depth // blocks

        def value(n: tirx.Var, k: tirx.Var) -> Any:
            if bits == 8:
                return values[n, k]
            shift = (k % WEIGHTS_PER_WORD * 4).astype("uint32")
            return values[n, k // WEIGHTS_PER_WORD] >> shift & tirx.const(15, "uint32")

        def unpacked(n: tirx.Var, k: tirx.Var) -> Any:
            zero = zeros[0][n, k // block] if zeros else tirx.const(single, dtype)
            return (value(n, k).astype(dtype) - zero) * scales[n, k // block]

        extent = tirx.IntImm("int64", depth)
        weight = te.compute((count, extent), unpacked, name="unpacked")
        k = te.reduce_axis((tirx.IntImm("int64", 0), extent), "k")

        def element(*at: tirx.Var) -> Any:
            product = x[(*at[:-1], k)].astype("float32") * weight[at[-1], k].astype("float32")
            return te.sum(product, axis=k)

        total = te.compute((*x.shape[:-1], count), element, name="matmul")
        out = str(call.ty.dtype)
        if out == "float32":
            return total
        return te.compute(total.shape, lambda *at: total(*at).astype(out), name="cast")

    operands = [x, relax.const(found.values), relax.const(found.scales, dtype)]
    if single is None:
        operands.append(relax.const(found.zero_points.astype(dtype), dtype))
    return builder.call_te(multiply, *operands, primfunc_name_hint=f"matmul_int{bits}")


@mutator
class _Unpack(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, on_gpu: bool) -> None:
        super().__init__(mod)
        self._on_gpu = on_gpu

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not self._on_gpu:
            found = packed_weight(call)
            return call if found is None else relax.const(found.dense(), found.scales.dtype)
        if getattr(call.op, "name", "") == "relax.astype" and isinstance(call.args[0], relax.Var):
            found = packed_weight(self.lookup_binding(call.args[0]))
            if found is not None:
                narrow = found.scales.astype(dtypes.dtype(str(call.attrs.dtype)).numpy)
                return PackedWeight(found.values, narrow, found.zero_points).call()
        return call


@tvm.transform.module_pass(opt_level=0, name="UnpackWeights")
class UnpackWeights:
    """Dequantize packed weights for a CPU; for a GPU, cast their scales instead of the weights.

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

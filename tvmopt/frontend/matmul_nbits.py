"""ONNX Runtime's MatMulNBits: a matmul with a weight of 4 or 8 bits, quantised in blocks along K.

``y = x @ W + bias`` with ``W[k, n] = (q[n, k] - zero_point) * scale``: a zero point and a scale for
each row ``n`` and each ``block_size`` values of ``k``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema
from tvm import relax

from tvmopt.transform.packed_weight import PackedWeight
from tvmopt.transform.precision.anchor_call import constant_data

_NAME, _DOMAIN = "MatMulNBits", "com.microsoft"
_DTYPES = ("float16", "float32")
# Rows of activations up to which the GPU's GEMV kernels unpack the weight; a GEMM of more rows
# would unpack it again for each tile.
_MOST_ROWS = 8


def matmul_nbits(
    builder: relax.BlockBuilder, inputs: Sequence[relax.Expr], attributes: Mapping[str, Any]
) -> relax.Expr:
    """Return the matmul of ``x`` (..., K) with the weight, (..., N).

    The weight stays packed for a few rows of activations and K of whole blocks; otherwise it
    becomes a dense constant.

    Args:
        builder: Block builder to emit into.
        inputs: Activation, weight (N, blocks, bytes of a block), scales, and optionally zero
            points, group indices and bias.
        attributes: Attributes of the ONNX node.

    Raises:
        ValueError: When the node has other attributes or inputs than supported.
    """
    x, weight, scales, zero_points, group_indices, bias = [*inputs, *[None] * 6][:6]
    depth, rows = int(attributes["K"]), int(attributes["N"])
    bits, block = int(attributes.get("bits", 4)), int(attributes["block_size"])
    _require(bits in (4, 8), f"bits must be 4 or 8, but got {bits}")
    _require(
        block in (16, 32, 64, 128, 256), f"block_size must be a power of 2 in 16..256, got {block}"
    )
    _require(group_indices is None, "group indices (g_idx) are not supported")
    dtype = str(x.ty.dtype)
    _require(dtype in _DTYPES, f"activations must be {' or '.join(_DTYPES)}, but are {dtype}")
    blocks = math.ceil(depth / block)
    values = _constant(weight, "weight", "uint8", (rows, blocks * block * bits // 8))
    scale = _constant(scales, "scales", dtype, (rows, blocks))
    zeros = _zero_points(zero_points, rows, blocks, bits, dtype)
    packed = PackedWeight(values.view("<u4") if bits == 4 else values, scale, zeros)
    x = builder.normalize(x)
    few = math.prod(int(extent) for extent in x.ty.shape) <= _MOST_ROWS * depth
    whole = depth == blocks * block
    matrix = packed.call() if few and whole else relax.const(packed.dense()[:depth])
    y = relax.op.matmul(x, matrix, out_dtype="float32")
    y = y if dtype == "float32" else relax.op.astype(y, dtype)
    return builder.normalize(y if bias is None else relax.op.add(y, bias))


def register_shape_inference() -> None:
    """Let ONNX infer the output shape of the operator, and so of the layers behind it."""
    if onnx.defs.has(_NAME, domain=_DOMAIN):
        return
    inputs = OpSchema.FormalParameter(
        "inputs", "T", param_option=OpSchema.FormalParameterOption.Variadic, is_homogeneous=False
    )
    dtypes = [f"tensor({name})" for name in ("float", "float16", "uint8", "int32")]
    schema = OpSchema(
        _NAME,
        _DOMAIN,
        1,
        inputs=[inputs],
        outputs=[OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", dtypes, "")],
        attributes=[OpSchema.Attribute("N", OpSchema.AttrType.INT, "rows of the weight")],
    )
    schema.set_type_and_shape_inference_function(_infer_shape)
    onnx.defs.register_schema(schema)


def _infer_shape(context: onnx.shape_inference.InferenceContext) -> None:
    y = onnx.TypeProto()
    y.CopyFrom(context.get_input_type(0))
    last = y.tensor_type.shape.dim[-1]
    last.Clear()
    last.dim_value = context.get_attribute("N").i
    context.set_output_type(0, y)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"MatMulNBits: {rule}")


def _constant(
    value: relax.Expr | None, what: str, dtype: str, shape: tuple[int, int]
) -> np.ndarray:
    data = None if value is None else constant_data(value)
    if data is None:
        raise ValueError(f"MatMulNBits: {what} must be a constant")
    array = data.numpy()
    _require(
        str(array.dtype) == dtype and array.size == math.prod(shape),
        f"{what} must hold {math.prod(shape)} {dtype} values, but hold {array.size} {array.dtype}",
    )
    return np.ascontiguousarray(array).reshape(shape)


def _zero_points(
    value: relax.Expr | None, rows: int, blocks: int, bits: int, dtype: str
) -> np.ndarray:
    """Return the zero points, float32 (rows, blocks); (1, 1) where all are the same.

    Integers of 4 bits are packed in bytes, two each, and rows are padded. Zero points may also have
    the ``dtype`` of the scales.
    """
    data = None if value is None else constant_data(value)
    if value is None:
        zeros = np.full((1, 1), 2 ** (bits - 1))
    elif data is not None and str(data.dtype) == dtype:
        zeros = _constant(value, "zero points", dtype, (rows, blocks))
    else:
        packed = _constant(value, "zero points", "uint8", (rows, math.ceil(blocks * bits / 8)))
        if bits == 4:
            packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)
        zeros = packed[:, :blocks]
    if (zeros == zeros.flat[0]).all():
        zeros = zeros[:1, :1]
    return zeros.astype("float32")

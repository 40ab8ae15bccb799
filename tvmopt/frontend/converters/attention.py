"""Converter of MultiHeadAttention of com.microsoft into matmuls, a mask and a softmax.

The operators are those that :mod:`tvmopt.transform.attention` finds.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    dtype_of,
    optional,
    outputs,
    static_shape,
)

_LOWEST = float(np.finfo(np.float32).min)


def multi_head_attention(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the output (batch, queries, heads * size), and the present key and value.

    Q is (batch, queries, heads * size); K and V are so, too, or (batch, heads, keys, size).
    """
    emit, heads = builder.emit, int(attributes["num_heads"])
    query, key, value, bias, padding, added, past_key, past_value = (
        optional(inputs, place) for place in range(8)
    )
    if key is None or value is None or len(static_shape(query)) != 3:
        raise ValueError("query, key and value must be separate tensors")
    if len(inputs) > 8 and any(each is not None for each in inputs[8:]):
        raise ValueError("past_sequence_length and cache_indirection must be left out")
    if outputs(attributes) > 3:
        raise ValueError("scores must not be an output")
    parts = _biases(builder, bias, [query, key, value])
    q, k, v = (
        by_head(builder, each, part, heads)
        for each, part in zip((query, key, value), parts, strict=True)
    )
    if past_key is not None and past_value is not None:
        k, v = emit(relax.op.concat([past_key, k], 2)), emit(relax.op.concat([past_value, v], 2))
    scale = float(attributes.get("scale", 0.0)) or static_shape(q)[3] ** -0.5
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    scores = emit(relax.op.multiply(scores, relax.const(scale, dtype_of(q))))
    batch, _, queries, keys = static_shape(scores)
    if padding is not None:
        if static_shape(padding) != [batch, keys]:
            raise ValueError("key_padding_mask must be of shape (batch, keys)")
        shown = emit(relax.op.reshape(relax.op.astype(padding, "bool"), (batch, 1, 1, keys)))
        hidden = relax.const(float(attributes.get("mask_filter_value", -10000.0)), dtype_of(q))
        mask = emit(relax.op.where(shown, relax.const(0.0, dtype_of(q)), hidden))
        scores = emit(relax.op.add(scores, mask))
    if added is not None:
        scores = emit(relax.op.add(scores, added))
    if int(attributes.get("unidirectional", 0)):
        seen = np.where(np.tri(queries, keys, keys - queries, dtype=bool), 0.0, _LOWEST)
        scores = emit(relax.op.add(scores, relax.const(seen.astype("float32"), dtype_of(q))))
    out = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
    transposed = emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
    result = emit(relax.op.reshape(transposed, (batch, queries, heads * static_shape(v)[3])))
    return relax.Tuple([result, k, v][: outputs(attributes)]) if outputs(attributes) > 1 else result


def _biases(
    builder: relax.BlockBuilder, bias: relax.Expr | None, tensors: list[relax.Expr]
) -> list[relax.Expr | None]:
    """Return the biases of Q, K and V, which are concatenated."""
    if bias is None:
        return [None, None, None]
    found, begun = [], 0
    for tensor in tensors:
        shape = static_shape(tensor)
        if len(shape) != 3:
            raise ValueError("key and value of four axes must have no bias")
        part = relax.op.strided_slice(bias, [0], [begun], [begun + shape[2]])
        found.append(builder.emit(part))
        begun += shape[2]
    return found


def by_head(
    builder: relax.BlockBuilder, tensor: relax.Expr, bias: relax.Expr | None, heads: int
) -> relax.Expr:
    """Return (batch, heads, length, size) of (batch, length, heads * size)."""
    shape = static_shape(tensor)
    if len(shape) == 4:
        return tensor
    if bias is not None:
        tensor = builder.emit(relax.op.add(tensor, bias))
    split = (*shape[:2], heads, shape[2] // heads)
    return builder.emit(
        relax.op.permute_dims(builder.emit(relax.op.reshape(tensor, split)), [0, 2, 1, 3])
    )

"""Converter of GroupQueryAttention of com.microsoft into a cache, matmuls, masks and a softmax.

The present of a batch entry with a sequence of ``seqlens_k + 1`` keys, and what a query sees::

    prompt          all keys are new                      keys up to itself, and to seqlens_k
    after a past    past .. | new keys | zeros ..         keys up to itself
                            ^ place = seqlens_k + 1 - queries

The operators are those that :mod:`tvmopt.transform.attention` finds: repeated heads of K and V are
no tensor there.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.attention import by_head
from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    dtype_of,
    optional,
    outputs,
    static_shape,
)

# Attributes that change the result, each with the value at which it does not.
_PLAIN = {
    "do_rotary": 0, "local_window_size": -1, "smooth_softmax": 0, "softcap": 0.0, "qk_output": 0,
    "kv_cache_bit_width": 0,
}  # fmt: skip
_INPUTS = 11


def group_query_attention(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the output (batch, queries, heads * size), and the present key and value.

    Q is (batch, queries, heads * size), K and V are (batch, queries, kv heads * size), the past
    and the present (batch, kv heads, keys, size).

    Raises:
        ValueError: For rotary embedding, packed operands and other cases that are not converted.
    """
    for name, plain in _PLAIN.items():
        if attributes.get(name, plain) != plain:
            raise ValueError(f"{name} must be {plain}, not {attributes[name]}")
    query, key, value, past_key, past_value, lengths, total, _, _, _, bias = (
        optional(inputs, place) for place in range(_INPUTS)
    )
    if key is None or value is None:
        raise ValueError("query, key and value must be separate tensors")
    if any(each is not None for each in inputs[_INPUTS:]):
        raise ValueError("head_sink and scales of a quantised cache must be left out")
    if outputs(attributes) > 3:
        raise ValueError("scores must not be an output")
    heads, kv_heads = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    whole = int(constant(total, "total_sequence_length").reshape(()))
    q = by_head(builder, query, None, heads)
    k, v = (by_head(builder, each, None, kv_heads) for each in (key, value))
    if lengths is None:
        raise ValueError("seqlens_k must be given")
    cache = _Cache(builder, whole, static_shape(k), past_key, lengths)
    present_k, present_v = cache.present(past_key, k), cache.present(past_value, v)
    result = _attention(builder, q, cache, present_k, present_v, bias, attributes)
    results = [result, present_k, present_v][: outputs(attributes)]
    return relax.Tuple(results) if len(results) > 1 else result


class _Cache:
    """Places of keys in the cache.

    Attributes:
        whole: Keys of the longest sequence.
    """

    def __init__(
        self, builder: relax.BlockBuilder, whole: int, shape: list[int],
        past: relax.Expr | None, lengths: relax.Expr,
    ) -> None:  # fmt: skip
        self._emit, self.whole = builder.emit, whole
        self._batch, _, self._queries, _ = shape
        self._before = 0 if past is None else static_shape(past)[2]
        self._length = max(self._before, whole)
        self._is_prompt = whole == self._queries
        if whole < self._queries:
            raise ValueError(f"total_sequence_length must be {self._queries} at least, not {whole}")
        if whole - self._queries > self._before:
            raise ValueError(f"a past of {self._before} keys must hold {whole - self._queries}")
        if self._batch > 1 and self._queries > 1 and not self._is_prompt:
            raise ValueError("several queries after a past must be a batch of one")
        last = relax.op.astype(relax.op.reshape(lengths, (self._batch, 1, 1, 1)), "int32")
        self._last = self._emit(last)
        self._place = self._emit(relax.op.subtract(self._last, _number(self._queries - 1)))

    def present(self, past: relax.Expr | None, new: relax.Expr) -> relax.Expr:
        """Return the past, the new keys or values, and zeros."""
        emit, op = self._emit, relax.op
        if self._is_prompt:
            return self._padded(new)
        assert past is not None
        places = _numbers(self._length, 2)
        is_past, zero = emit(op.less(places, self._place)), relax.const(0.0, dtype_of(new))
        if self._queries == 1:
            after = emit(op.where(emit(op.equal(places, self._place)), new, zero))
            return emit(op.where(is_past, self._padded(past), after))
        both = emit(op.concat([past, new], 2))
        number = emit(op.subtract(places, self._place))  # of a new key
        last = _number(self._queries - 1)
        inside = emit(op.minimum(emit(op.maximum(number, _number(0))), last))
        index = emit(op.where(is_past, places, emit(op.add(inside, _number(self._before)))))
        taken = emit(op.take(both, emit(op.reshape(index, (self._length,))), 2))
        return emit(op.where(emit(op.less_equal(number, last)), taken, zero))

    def seen(self, present: relax.Expr) -> relax.Expr:
        """Return the keys or values that some query may see."""
        if self.whole == self._length:
            return present
        return self._emit(relax.op.strided_slice(present, [2], [0], [self.whole]))

    def masks(self) -> list[relax.Expr]:
        """Return the conditions under which a query sees a key; one constant one of a prompt."""
        emit, keys = self._emit, _numbers(self.whole, 3)
        if self._queries == 1 or self._is_prompt:
            short = emit(relax.op.less_equal(keys, self._last))
            rows = np.tri(self._queries, self.whole, dtype=bool)
            return [short] if self._queries == 1 else [short, relax.const(rows, "bool")]
        itself = emit(relax.op.add(self._place, _numbers(self._queries, 2)))
        return [emit(relax.op.less_equal(keys, itself))]

    def _padded(self, cache: relax.Expr) -> relax.Expr:
        """Return the cache with zeros up to the length of the present."""
        batch, heads, count, size = static_shape(cache)
        if count == self._length:
            return cache
        shape = (batch, heads, self._length - count, size)
        zeros = self._emit(relax.op.zeros(shape, dtype_of(cache)))
        return self._emit(relax.op.concat([cache, zeros], 2))


def _number(value: int) -> relax.Expr:
    return relax.const(value, "int32")


def _numbers(count: int, axis: int) -> relax.Expr:
    """Return the numbers 0, 1, ... along an axis of four."""
    shape = [1, 1, 1, 1]
    shape[axis] = count
    return relax.const(np.arange(count, dtype="int32").reshape(shape), "int32")


def _attention(
    builder: relax.BlockBuilder, q: relax.Expr, cache: _Cache, k: relax.Expr, v: relax.Expr,
    bias: relax.Expr | None, attributes: Attributes,
) -> relax.Expr:  # fmt: skip
    emit = builder.emit
    batch, heads, queries, size = static_shape(q)
    k, v = (_repeated(builder, cache.seen(each), heads) for each in (k, v))
    scale = float(attributes.get("scale", 0.0)) or size**-0.5
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    scores = emit(relax.op.multiply(scores, relax.const(scale, dtype_of(q))))
    if bias is not None:
        scores = emit(relax.op.add(scores, bias))
    hidden = relax.const(-np.inf, dtype_of(q))  # the first key is seen by all
    for mask in cache.masks():
        scores = emit(relax.op.where(mask, scores, hidden))
    out = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
    transposed = emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
    return emit(relax.op.reshape(transposed, (batch, queries, heads * static_shape(v)[3])))


def _repeated(builder: relax.BlockBuilder, x: relax.Expr, heads: int) -> relax.Expr:
    """Return K or V with each head repeated for the heads of Q that share it."""
    batch, kv_heads, keys, size = static_shape(x)
    if heads == kv_heads:
        return x
    wide = builder.emit(relax.op.expand_dims(x, 2))
    shape = (batch, kv_heads, heads // kv_heads, keys, size)
    wide = builder.emit(relax.op.broadcast_to(wide, shape))
    return builder.emit(relax.op.reshape(wide, (batch, heads, keys, size)))

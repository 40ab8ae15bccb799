"""Converter of GroupQueryAttention of com.microsoft into a cache, matmuls, a mask and a softmax.

New keys and values follow those of the past in the cache, at ``seqlens_k + 1 - queries`` of each
batch entry; zeros follow them. Three cases have a known place:

- a prompt, as long as the whole sequence: the past is empty
- a batch of one: ``total_sequence_length`` is the length of its sequence
- one query in each batch entry: a comparison with the place chooses the new key

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
    cache = _Cache(builder, whole, static_shape(k), past_key, lengths)
    present_k, present_v = cache.with_new(past_key, k), cache.with_new(past_value, v)
    result = _attention(builder, q, cache, present_k, present_v, bias, attributes)
    results = [result, present_k, present_v][: outputs(attributes)]
    return relax.Tuple(results) if len(results) > 1 else result


class _Cache:
    """Places of keys in the cache.

    Attributes:
        whole: Keys of the longest sequence.
        place: First place of new keys in each batch entry, (batch, 1, 1, 1); None where it is
            ``whole - queries`` in all of them.
    """

    def __init__(
        self, builder: relax.BlockBuilder, whole: int, shape: list[int],
        past: relax.Expr | None, lengths: relax.Expr | None,
    ) -> None:  # fmt: skip
        self._emit, self.whole = builder.emit, whole
        batch, _, self._queries, _ = shape
        before = 0 if past is None else static_shape(past)[2]
        self._length = max(before, whole)
        if whole < self._queries:
            raise ValueError(f"total_sequence_length must be {self._queries} at least, not {whole}")
        if whole - self._queries > before:
            raise ValueError(f"a past of {before} keys must hold {whole - self._queries}")
        self.place: relax.Expr | None = None
        if batch > 1 and whole > self._queries:
            if self._queries > 1 or lengths is None:
                raise ValueError("several queries after a past must be a batch of one")
            self.place = self._emit(relax.op.reshape(lengths, (batch, 1, 1, 1)))

    def with_new(self, past: relax.Expr | None, new: relax.Expr) -> relax.Expr:
        """Return the present: the past, the new keys or values, and zeros."""
        first = self.whole - self._queries
        if self.place is None:
            parts = [new] if past is None or not first else [self._cut(past, first), new]
            return self._padded(parts)
        assert past is not None
        places = self._places()
        cache = self._padded([past])
        old = relax.op.where(relax.op.less(places, self.place), cache, _zero(cache))
        return self._emit(relax.op.where(relax.op.equal(places, self.place), new, self._emit(old)))

    def seen(self, present: relax.Expr) -> relax.Expr:
        """Return the keys or values that some query may see."""
        return self._cut(present, self.whole) if self.whole < self._length else present

    def mask(self) -> relax.Expr | None:
        """Return the condition under which a query sees a key; None where it sees all."""
        if self.place is not None:
            hidden = relax.op.greater(self._places(self.whole, axis=3), self.place)
            return self._emit(relax.op.logical_not(self._emit(hidden)))
        if self._queries == 1:
            return None
        rows = np.tri(self._queries, self.whole, self.whole - self._queries, dtype=bool)
        return relax.const(rows, "bool")

    def _places(self, count: int = 0, axis: int = 2) -> relax.Expr:
        """Return the numbers 0, 1, ... along an axis of four."""
        shape = [1, 1, 1, 1]
        shape[axis] = count or self._length
        return relax.const(np.arange(shape[axis], dtype="int32").reshape(shape), "int32")

    def _padded(self, parts: list[relax.Expr]) -> relax.Expr:
        """Return the parts one after the other, with zeros up to the length of the present."""
        shape = static_shape(parts[0])
        missing = self._length - sum(static_shape(part)[2] for part in parts)
        if missing:
            zeros = relax.op.zeros((*shape[:2], missing, shape[3]), dtype_of(parts[0]))
            parts = [*parts, self._emit(zeros)]
        return self._emit(relax.op.concat(parts, 2)) if len(parts) > 1 else parts[0]

    def _cut(self, cache: relax.Expr, count: int) -> relax.Expr:
        """Return the first keys or values of the cache."""
        if static_shape(cache)[2] == count:
            return cache
        return self._emit(relax.op.strided_slice(cache, [2], [0], [count]))


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
    mask = cache.mask()
    if mask is not None:
        hidden = relax.const(-np.inf, dtype_of(q))  # no query has all keys hidden
        scores = emit(relax.op.where(mask, scores, hidden))
    out = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
    turned = emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
    return emit(relax.op.reshape(turned, (batch, queries, heads * static_shape(v)[3])))


def _repeated(builder: relax.BlockBuilder, x: relax.Expr, heads: int) -> relax.Expr:
    """Return K or V with each head repeated for the heads of Q that share it."""
    batch, kv_heads, keys, size = static_shape(x)
    if heads == kv_heads:
        return x
    wide = builder.emit(relax.op.expand_dims(x, 2))
    shape = (batch, kv_heads, heads // kv_heads, keys, size)
    wide = builder.emit(relax.op.broadcast_to(wide, shape))
    return builder.emit(relax.op.reshape(wide, (batch, heads, keys, size)))


def _zero(like: relax.Expr) -> relax.Expr:
    return relax.const(0.0, dtype_of(like))

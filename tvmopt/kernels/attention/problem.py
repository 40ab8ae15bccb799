"""Scaled dot-product attention of static shape: ``softmax(scale * Q K^T + mask) V``."""

from __future__ import annotations

import dataclasses
import enum
import json

from tvm import tirx

#: Attribute of a function that computes attention; its value is :meth:`AttentionProblem.to_json`.
ATTENTION_ATTR = "tvmopt.attention"
#: Kind of the kernel families that compute it.
ATTENTION_KIND = "attention"
#: Axes of an operand in the order of the kernel: batch, head, sequence, head size.
AXES = "bhsd"


class MaskedBy(enum.Enum):
    """Causal masks: which keys a query at position ``i`` of ``queries`` does not see.

    With as many keys as queries, both are the same.
    """

    NOTHING = "nothing"
    #: Keys after ``i``.
    FIRST_KEY = "first_key"
    #: Keys after ``i + keys - queries``: the last query sees all keys.
    LAST_KEY = "last_key"


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
    """Scaled dot-product attention.

    Attributes:
        batch: Batch size.
        heads: Heads of Q.
        kv_heads: Heads of K and V, a divisor of ``heads``: neighbouring heads of Q share one.
        queries: Length of Q.
        keys: Length of K and V.
        head_size: Size of a row of Q and K.
        value_size: Size of a row of V and of the output.
        dtype: Of Q, K, V and the output. Scores and accumulators are float32.
        scale: Factor on the scores.
        causal: Causal mask.
        mask_shape: Shape of the mask, (batch or 1, heads or 1, queries or 1, keys); None without.
        mask_dtype: ``"bool"``, where False hides a key, or a float dtype, whose values are added to
            the scaled scores.
        q_axes: Order of the axes of Q in memory, a permutation of ``"bhsd"``.
        k_axes: Axes of K, likewise.
        v_axes: Axes of V, likewise.
        out_axes: Axes of the output, likewise.
        q_heads: First head and number of heads of the tensor in memory, where Q is a range of its
            heads; None where Q is the whole tensor.
        k_heads: Heads of K, likewise.
        v_heads: Heads of V, likewise.

    A query that sees no key has an output of zeros with a boolean or causal mask.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    dtype: str
    scale: float
    causal: MaskedBy = MaskedBy.NOTHING
    mask_shape: tuple[int, int, int, int] | None = None
    mask_dtype: str = ""
    q_axes: str = AXES
    k_axes: str = AXES
    v_axes: str = AXES
    out_axes: str = AXES
    q_heads: tuple[int, int] | None = None
    k_heads: tuple[int, int] | None = None
    v_heads: tuple[int, int] | None = None

    @property
    def first_heads(self) -> tuple[int, int, int]:
        """The first head of Q, K and V in the tensors in memory."""
        q, k, v = (part[0] if part else 0 for part in (self.q_heads, self.k_heads, self.v_heads))
        return q, k, v

    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """Return shape and dtype of the function's parameters: Q, K, V, the mask, the output.

        The shape of an operand that is a range of heads is that of the tensor in memory.
        """
        extents = (
            (self.q_heads, self.heads, self.queries, self.head_size, self.q_axes),
            (self.k_heads, self.kv_heads, self.keys, self.head_size, self.k_axes),
            (self.v_heads, self.kv_heads, self.keys, self.value_size, self.v_axes),
            (None, self.heads, self.queries, self.value_size, self.out_axes),
        )
        shapes: list[tuple[tuple[int, ...], str]] = []
        for part, heads, length, size, axes in extents:
            stored = part[1] if part else heads
            extent = dict(zip(AXES, (self.batch, stored, length, size), strict=True))
            shapes.append((tuple(extent[axis] for axis in axes), self.dtype))
        if self.mask_shape is not None:
            shapes.insert(3, (self.mask_shape, self.mask_dtype))
        return shapes

    def macs(self) -> int:
        """Return the multiply-adds of both GEMMs, those that a causal mask hides included."""
        rows = self.batch * self.heads * self.queries
        return rows * self.keys * (self.head_size + self.value_size)

    def cache_bytes(self) -> int:
        """Return the bytes of K and V, of 16 bits an element."""
        return 2 * self.batch * self.kv_heads * self.keys * (self.head_size + self.value_size)

    def to_json(self) -> str:
        """Return the problem as JSON."""
        return json.dumps({**dataclasses.asdict(self), "causal": self.causal.value})

    @classmethod
    def from_json(cls, text: str) -> AttentionProblem:
        """Return the problem of :meth:`to_json`."""
        fields = json.loads(text)
        for name, value in fields.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        return cls(**{**fields, "causal": MaskedBy(fields["causal"])})


def problem_of(func: tirx.PrimFunc) -> AttentionProblem | None:
    """Return the problem that ``func`` computes; None without :data:`ATTENTION_ATTR`."""
    text = (func.attrs or {}).get(ATTENTION_ATTR)
    return None if text is None else AttentionProblem.from_json(str(text))


def causal_offset(problem: AttentionProblem) -> int:
    """Return the number of keys that the first query sees, minus one."""
    if problem.causal is MaskedBy.LAST_KEY:
        return problem.keys - problem.queries
    return 0

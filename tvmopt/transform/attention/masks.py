"""Masks of attention: what is added to the scores, and which constants are causal."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from tvm import relax

from tvmopt.kernels.attention import MaskedBy
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.integer.values import static_shape

# Scores at least this much lower than others have a softmax of 0 in float32.
_HIDDEN = -1e4


@dataclasses.dataclass(frozen=True)
class FoundMask:
    """A value that is added to the scores.

    Attributes:
        value: What is added; a condition, if ``hidden`` is a number.
        hidden: What is added where the condition does not hold.
        inverted: Whether it is added where the condition holds.
        added: The tensor that the graph adds, if it adds one.
    """

    value: relax.Expr
    hidden: float | None = None
    inverted: bool = False
    added: relax.Expr | None = None

    def constant(self, graph: Producers) -> np.ndarray | None:
        """Return the mask as numbers, if it is constant."""
        data = graph.constant(self.value)
        if data is None or self.hidden is None:
            return data
        shown, hidden = np.float32(0), np.float32(self.hidden)
        return np.where(data != self.inverted, shown, hidden)

    @property
    def dtype(self) -> str:
        """The dtype of :meth:`tensor`."""
        if self.hidden is None:
            return str(self.value.ty.dtype)
        return "bool" if self.hidden == -math.inf else "float32"

    def tensor(self) -> relax.Expr:
        """Return the mask as an expression: a condition where it hides keys by -inf."""
        if self.hidden is None:
            return self.value
        if self.hidden == -math.inf:
            return relax.op.logical_not(self.value) if self.inverted else self.value
        shown, hidden = relax.const(0.0, "float32"), relax.const(self.hidden, "float32")
        choices = (hidden, shown) if self.inverted else (shown, hidden)
        return relax.op.where(self.value, *choices)


def masked(expr: relax.Expr, graph: Producers) -> list[tuple[relax.Expr, FoundMask]]:
    """Return each way to read ``expr`` as scores and a mask: by Add and by Where."""
    call = graph.call(expr, "add", "where")
    if call is None:
        return []
    if len(call.args) == 2:
        left, right = call.args
        return [(left, _added(right, graph)), (right, _added(left, graph))]
    condition, when, otherwise = call.args
    found = []
    for scores, other, inverted in ((when, otherwise, False), (otherwise, when, True)):
        value = graph.scalar(other)
        if value is not None and value <= _HIDDEN:
            found.append((scores, FoundMask(condition, value, inverted)))
    return found


def _added(value: relax.Expr, graph: Producers) -> FoundMask:
    """Return the mask that adds ``value``, by its condition if it is ``where(c, 0, -inf)``."""
    chosen = graph.call(value, "where")
    if chosen is not None:
        condition, *choices = chosen.args
        for shown, hidden, inverted in ((*choices, False), (*reversed(choices), True)):
            number = graph.scalar(hidden)
            if graph.scalar(shown) == 0.0 and number is not None and number <= _HIDDEN:
                return FoundMask(condition, number, inverted, value)
    return FoundMask(value, added=value)


def causal(mask: np.ndarray, queries: int, keys: int) -> MaskedBy | None:
    """Return which causal mask ``mask`` is, or that it hides nothing; None for other masks.

    Args:
        mask: What is added to the scores, of at most four axes.
        queries: Length of Q.
        keys: Length of K.
    """
    whole = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (queries, keys)))
    rows = whole.reshape(-1, queries, keys)
    if not (rows == rows[:1]).all():
        return None
    visible = rows[0] == 0
    if not (visible | (rows[0] <= _HIDDEN)).all():
        return None
    if visible.all():
        return MaskedBy.NOTHING
    if np.array_equal(visible, np.tri(queries, keys, dtype=bool)):
        return MaskedBy.FIRST_KEY
    last = np.tri(queries, keys, keys - queries, dtype=bool)
    if keys >= queries and np.array_equal(visible, last):
        return MaskedBy.LAST_KEY
    return None


def mask_shape(expr: relax.Expr) -> tuple[int, int, int, int] | None:
    """Return the shape of a mask with four axes; None where it has more, or is not static."""
    shape = static_shape(expr)
    if shape is None or len(shape) > 4:
        return None
    batch, heads, queries, keys = (1,) * (4 - len(shape)) + shape
    return batch, heads, queries, keys

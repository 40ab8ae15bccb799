"""Guards of a softmax: rows that hold nothing but -inf become zeros.

::

    where(isnan(weights), 0, weights)                          # PyTorch's exporter
    where(max(mask, -1) == -inf, 0, weights)                   # ONNX's Attention
"""

from __future__ import annotations

import math

from tvm import relax

from tvmopt.transform.attention.producers import Producers


def is_zero(expr: relax.Expr, graph: Producers) -> bool:
    """Return whether a value is constant and 0."""
    data = graph.constant(expr)
    return data is not None and not data.any()


def hidden_rows(condition: relax.Expr, graph: Producers) -> relax.Expr | None:
    """Return the mask whose rows of nothing but -inf ``condition`` finds; None for others."""
    equal = graph.call(condition, "equal")
    if equal is None or graph.scalar(equal.args[1]) != -math.inf:
        return None
    highest = graph.call(equal.args[0], "max")
    if highest is None or not highest.attrs.keepdims or highest.attrs.axis is None:
        return None
    mask = highest.args[0]
    last = [int(axis) for axis in highest.attrs.axis] in ([-1], [mask.ty.ndim - 1])
    return mask if last else None

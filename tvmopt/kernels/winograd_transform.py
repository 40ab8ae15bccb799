"""Winograd transforms of tiles in tensor expressions: ``matrix @ tile @ matrix.T``, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import te, tirx


def both_sides(
    matrix: Sequence[Sequence[float]],
    shape: Sequence[int],
    value: Callable[..., Any],
    dtype: str,
    name: str,
    attrs: Mapping[str, int] | None = None,
    out_dtype: str = "",
) -> te.Tensor:
    """Return ``matrix @ tile @ matrix.T`` of every tile, columns first.

    Args:
        matrix: (a, b).
        shape: Extents of the tile indices.
        value: Element i, j of a tile of (b, b): ``value(i, j, *tile)``.
        dtype: dtype of the elements and of the arithmetic.
        name: Name of the result; the stage before it has the suffix ``_rows``.
        attrs: Annotations of the result's stage.
        out_dtype: dtype of the result; ``dtype`` without.

    Returns:
        (a, a, *shape).
    """
    size, side = len(matrix), len(matrix[0])
    rows = te.compute(
        (size, side, *shape),
        lambda i, j, *at: _row(matrix, i, lambda k: value(k, j, *at), dtype),
        name=f"{name}_rows",
    )
    return te.compute(
        (size, size, *shape),
        lambda i, j, *at: _row(matrix, j, lambda k: rows[(i, k, *at)], dtype).astype(
            out_dtype or dtype
        ),
        name=name,
        attrs=dict(attrs or {}),
    )


def _row(
    matrix: Sequence[Sequence[float]], row: Any, value: Callable[[int], Any], dtype: str
) -> tirx.Expr:
    """Return row ``row`` of the product of ``matrix`` with values; zeros and ones need no multiply.

    ``row`` consists of loop variables: after unrolling, only one dot product remains.
    """
    sums = [_sum(coefficients, value, dtype) for coefficients in matrix]
    result = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        result = tirx.Select(row == index, sums[index], result)
    return result


def _sum(coefficients: Sequence[float], value: Callable[[int], Any], dtype: str) -> tirx.Expr:
    def term(k: int) -> Any:
        size = abs(coefficients[k])
        return value(k) if size == 1 else value(k) * tirx.const(float(size), dtype)

    # Start with a positive term where there is one, to avoid a subtraction from zero.
    used = sorted((k for k, c in enumerate(coefficients) if c), key=lambda k: coefficients[k] < 0)
    first = coefficients[used[0]]
    total = term(used[0]) if first > 0 else value(used[0]) * tirx.const(float(first), dtype)
    for k in used[1:]:
        total = total + term(k) if coefficients[k] > 0 else total - term(k)
    return total

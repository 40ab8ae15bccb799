"""Rows of outputs in the order of others, for models that sort.

A detector sorts boxes by score. Two scores that differ in their last bits may change places between
two correct implementations, and with them the rows of all outputs: boxes, scores and labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Most rows that are not where they belong; each is compared with all others.
_MOST_MISPLACED = 1000


def in_order_of(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], limit: float
) -> list[np.ndarray]:
    """Return ``actual`` with the rows that are equal to others of ``expected`` in their places.

    The rows lie along the first axis that is longer than 1; their number is the same in all outputs
    that have such an axis. A row moves in all outputs at once, and only where it then deviates by
    at most ``limit``; if not all find a place, none moves.

    Args:
        actual: Outputs.
        expected: Outputs in the wanted order.
        limit: Largest deviation of equal values, relative to the largest value of their output, or
            to 1 when that is larger.
    """
    arrays = [np.asarray(array) for array in actual]
    wanted = [np.asarray(array) for array in expected]
    axes = [_row_axis(array.shape) for array in wanted]
    with_rows = [n for n, axis in enumerate(axes) if axis >= 0]
    same = all(a.shape == w.shape for a, w in zip(arrays, wanted, strict=True))
    if not same or len({wanted[n].shape[axes[n]] for n in with_rows}) != 1:
        return arrays
    ours, theirs = (
        np.concatenate([_rows(side[n], wanted[n], axes[n]) for n in with_rows], axis=1)
        for side in (arrays, wanted)
    )
    wrong = np.nonzero(~(_apart(ours, theirs) <= limit))[0]
    if not 1 < len(wrong) <= _MOST_MISPLACED:
        return arrays
    order, free = np.arange(len(theirs)), list(wrong)
    for place in wrong:
        apart = _apart(ours[free], theirs[place])
        nearest = int(np.argmin(np.where(np.isnan(apart), np.inf, apart)))
        if not apart[nearest] <= limit:
            return arrays
        order[place] = free.pop(nearest)
    return [
        array if axis < 0 else np.take(array, order, axis)
        for array, axis in zip(arrays, axes, strict=True)
    ]


def _row_axis(shape: tuple[int, ...]) -> int:
    """Return the first axis that is longer than 1; -1 without one."""
    return next((axis for axis, extent in enumerate(shape) if extent > 1), -1)


def _rows(array: np.ndarray, wanted: np.ndarray, axis: int) -> np.ndarray:
    """Return the values of each row, relative to the largest value of ``wanted``."""
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    scale = 1.0 if wanted.dtype.kind in "iub" else max(1.0, float(finite.max(initial=0.0)))
    return np.moveaxis(array, axis, 0).astype(np.float64).reshape(array.shape[axis], -1) / scale


def _apart(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the largest difference of each row; equal infinities and NaN do not differ."""
    with np.errstate(invalid="ignore"):
        same = (rows == others) | (np.isnan(rows) & np.isnan(others))
        return np.where(same, 0.0, np.abs(rows - others)).max(axis=1, initial=0.0)

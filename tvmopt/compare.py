"""Deviation of two arrays: one definition for import, build, load and evaluation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tvmopt.device import dtypes
from tvmopt.row_order import in_order_of

MEASURES = ("max", "rms", "rows")
# Of what is nearly zero throughout, only the noise would be compared.
_LEAST_RMS = 1e-2
LEAST_DIRECTION = 1e-6
"""Outputs below it throughout are rounding of larger values, without a direction."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Largest deviation that outputs may have.

    Attributes:
        limit: Largest deviation allowed.
        measure: What the deviation is, see :func:`deviation`.
    """

    limit: float
    measure: str = "max"

    def __str__(self) -> str:
        of = "the root mean square" if self.measure == "rms" else "the largest value"
        return f"{self.limit:g} (relative to {of})"

    def in_order(
        self, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return ``actual``; with ``"rows"``, its rows in the order of ``expected``."""
        return in_order_of(actual, expected, self.limit) if self.measure == "rows" else actual


def model_tolerance(dtype: str) -> Tolerance:
    """For a model that computes in ``dtype``, a float: rounding, other orders of summation."""
    return Tolerance(dtypes.dtype(dtype).model_tolerance)


FLOAT_TOLERANCE = model_tolerance("float32")
HALF_TOLERANCE = model_tolerance("float16")
QUANTISED_TOLERANCE = Tolerance(0.1, "rms")
"""For a quantised model: a value on the edge between two steps may fall to either side, and what
follows makes single values of it that are far apart, so that the mean counts."""


def masked_alike(actual: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both with minus infinity where both mask a value, by it or by the lowest float.

    ONNX Runtime masks scores with the lowest float where the ONNX standard says minus infinity.
    """
    masked = _masks(actual) & _masks(expected)
    if not masked.any():
        return actual, expected
    return np.where(masked, -np.inf, actual), np.where(masked, -np.inf, expected)


def _masks(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f":
        return np.zeros(array.shape, bool)
    return array <= np.finfo(array.dtype).min


def deviation(actual: np.ndarray, expected: np.ndarray, measure: str = "max") -> float:
    """Difference of two arrays.

    ``"max"``: the largest absolute difference, relative to the largest absolute value of
    ``expected``, or to 1 when that is larger. ``"rms"``: the root mean square of the difference,
    relative to that of ``expected``, or to 0.01 when that is larger. ``"rows"``: as ``"max"``, of
    outputs that :meth:`Tolerance.in_order` has put in order. For integers and booleans, the
    share of elements that differ. Infinite where shapes differ or only one side holds NaN or an
    infinity; see also :func:`masked_alike`.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind in "iub":
        return float(np.mean(actual != expected))
    actual, expected = masked_alike(actual, expected)
    with np.errstate(invalid="ignore", over="ignore"):
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        difference = np.where(same, 0.0, np.abs(a - e))
        finite = np.abs(e[np.isfinite(e)])
        if measure == "rms":
            power = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
            found = np.sqrt(np.mean(difference**2)) / max(_LEAST_RMS, power)
        else:
            found = difference.max() / max(1.0, finite.max() if finite.size else 1.0)
    return float(found) if np.isfinite(found) else float("inf")


def same_non_finite(actual: np.ndarray, expected: np.ndarray, infinities: bool = True) -> bool:
    """Whether NaN is at the same places of both, and with ``infinities`` each infinity, too."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return False
    if expected.dtype.kind in "iub":
        return True
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(e)):
        return False
    either = np.isinf(a) | np.isinf(e)
    return not infinities or np.array_equal(a[either], e[either], equal_nan=True)


def cosine(actual: np.ndarray, expected: np.ndarray) -> float:
    """Cosine similarity of two arrays taken as vectors, over the finite values of ``expected``.

    1 when both are zero, or below 1e-6 throughout: the rounding of larger values has no direction.
    0 where shapes differ, where only one side is zero, and where only one side holds NaN or an
    infinity; see also :func:`masked_alike`.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return 0.0
    actual, expected = masked_alike(actual, expected)
    a, e = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    finite = np.isfinite(e)
    if not np.array_equal(a[~finite], e[~finite], equal_nan=True):
        return 0.0
    a, e = a[finite], e[finite]
    if not np.isfinite(a).all():
        return 0.0
    if max(np.abs(a).max(initial=0.0), np.abs(e).max(initial=0.0)) < LEAST_DIRECTION:
        return 1.0
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(e, e))
    if norms == 0:
        return 1.0 if np.allclose(a, e) else 0.0
    return float(np.clip(dot(a, e) / norms, -1.0, 1.0))


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Return the dot product of two vectors, without the threads of BLAS.

    BLAS waits for its threads where other processes run: 11 ms in place of 3 ms for 256,000
    elements at a load of 10 on 2 cores.
    """
    return float(np.einsum("i,i->", a, b))

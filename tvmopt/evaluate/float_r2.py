"""R² of a model's outputs, with the float model's in the place of the truth.

``1 - mean((actual - expected)²) / variance``, for each output; the worst output decides. The
variance is the float model's own over the samples: each element's about its own mean, so that a
model whose outputs hardly change is judged by the change, and a cosine of 1.0000 is not enough.
1 is equality, and 0 is no better than the mean. It does not depend on the outputs' unit. A drop of
0.01 is an error of a tenth of the outputs' standard deviation.

R² and no relative error, since errors of half precision are relative to the values: outputs of
cosine ``c`` that vary as much as they are large lose ``2 * (1 - c)``, as the limits of the cosine
allow, where the relative error would be its root.
"""

from __future__ import annotations

import numpy as np

from tvmopt.compare import LEAST_DIRECTION, masked_alike
from tvmopt.evaluate.weighted_r2 import shares

_FIELD_SHARE = 0.1
"""Share of a field's standard deviation over its elements that an error is relative to at least.

Boxes of a detector move little between images beside the grid that they lie on, and bfloat16 rounds
the sum of both.
"""
_ROUNDING = 1e-3
"""Share of an output's root mean square that an error is relative to at least.

float32 rounds values that never change, too.
"""
_FIELD_AXES = 3


class FloatR2:
    """Accumulate one output over batches.

    Elements that are NaN or infinite in the float model have no part in the number; R² is 0 where
    the model has them at other places. For integers, it is the share of elements that are equal.
    """

    def __init__(self) -> None:
        # Samples of one shape each: outputs whose shape depends on the data have several.
        self._shapes: dict[tuple[int, ...], _Moments] = {}
        self._error = self._power = self._spread = self._largest = 0.0
        self._count = self._elements = 0
        self._wrong = self._is_field = False
        self._differ = self._integers = 0
        self._errors: list[float] = []  # squared, of each sample

    def add(self, actual: np.ndarray, expected: np.ndarray) -> None:
        """Add samples, on the first axis of arrays of one shape."""
        if expected.size == 0:
            return
        self._elements = max(self._elements, expected[0].size)
        if expected.dtype.kind != "f":
            self._differ += int(np.count_nonzero(actual != expected))
            self._integers += expected.size
            unequal = (actual != expected).reshape(len(expected), -1)
            self._errors += np.count_nonzero(unequal, axis=1).tolist()
            return
        got, want = masked_alike(actual, expected)
        want = want.reshape(len(want), -1).astype(np.float64)
        got = got.reshape(want.shape).astype(np.float64)
        finite = np.isfinite(want)
        if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not (
            np.isfinite(got[finite]).all()
        ):
            self._wrong = True
            return
        with np.errstate(over="ignore", invalid="ignore"):
            self._add_finite(got, want, finite, expected.shape)

    def _add_finite(
        self, got: np.ndarray, want: np.ndarray, finite: np.ndarray, shape: tuple[int, ...]
    ) -> None:
        got, want = np.where(finite, got, 0.0), np.where(finite, want, 0.0)
        errors = ((got - want) ** 2).sum(axis=1)
        self._errors += errors.tolist()
        self._error += float(errors.sum())
        self._power += float((want**2).sum())
        self._largest = max(self._largest, float(np.abs(got).max()), float(np.abs(want).max()))
        self._count += int(finite.sum())
        of_a_sample = np.maximum(finite.sum(axis=1, keepdims=True), 1)
        mean = want.sum(axis=1, keepdims=True) / of_a_sample
        self._spread += float((np.where(finite, want - mean, 0.0) ** 2).sum())
        self._is_field |= len(shape) >= _FIELD_AXES
        if shape[1:] not in self._shapes:
            self._shapes[shape[1:]] = _Moments(want.shape[1])
        self._shapes[shape[1:]].add(want, finite)

    @property
    def value(self) -> float:
        """R², from 0 to 1."""
        if self._wrong:
            return 0.0
        if self._integers:
            return 1.0 - self._differ / self._integers
        if self._count == 0 or self._largest < LEAST_DIRECTION or self._error == 0:
            return 1.0
        error, variance = self._error / self._count, self._variance()
        if not np.isfinite(error) or not np.isfinite(variance):  # squares past float64
            return 0.0
        return max(0.0, 1.0 - error / variance) if variance > 0 else 0.0

    def losses(self) -> np.ndarray:
        """Return the share of each sample in what R² loses, times the number of samples.

        Their mean is ``1 - value``, unless that is limited to 1.
        """
        return shares(self._errors, 1.0 - self.value)

    def _variance(self) -> float:
        """Return the mean variance of an element; where nothing repeats, that over elements."""
        power, spread = self._power / self._count, self._spread / self._count
        repeats = sum(moments.repeats for moments in self._shapes.values())
        least = _ROUNDING**2 * power
        if not repeats:
            # One element of one sample varies over nothing: its own size is the scale.
            return max(spread, least) if self._elements > 1 else power
        variance = sum(moments.deviations for moments in self._shapes.values()) / repeats
        return max(variance, least, _FIELD_SHARE**2 * spread if self._is_field else 0.0)


class _Moments:
    """Squared deviations of elements from their means over samples, in one pass.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979.

    Attributes:
        deviations: Their sum over all elements.
        repeats: Number of values, less one for the mean of each element.
    """

    def __init__(self, elements: int) -> None:
        self._count = np.zeros(elements, np.int64)
        self._mean = np.zeros(elements)
        self.deviations, self.repeats = 0.0, 0

    def add(self, values: np.ndarray, finite: np.ndarray) -> None:
        """Add samples, (samples, elements), with zeros where they are not finite."""
        seen, new = self._count, finite.sum(axis=0)
        total = seen + new
        mean = values.sum(axis=0) / np.maximum(new, 1)
        apart = np.where(new > 0, mean - self._mean, 0.0)
        self.deviations += float((np.where(finite, values - mean, 0.0) ** 2).sum())
        self.deviations += float((apart**2 * (seen * new / np.maximum(total, 1))).sum())
        self._mean += apart * new / np.maximum(total, 1)
        self._count = total
        self.repeats = int((total - (total > 0)).sum())

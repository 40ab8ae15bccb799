"""Compare an exported or compiled model with its source: labels exactly, numbers to 1e-5."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tvmopt.errors import AccuracyError

#: Largest difference of probabilities, and of values relative to their size where that exceeds 1.
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class SourceAgreement:
    """Agreement of a model with its source.

    Attributes:
        rows: Number of rows.
        labels_differ: Rows with another label.
        largest: Largest difference of numbers.
    """

    rows: int
    labels_differ: int
    largest: float

    @property
    def is_exact(self) -> bool:
        """Return whether all labels are equal, and all numbers within the tolerance."""
        return self.labels_differ == 0 and self.largest <= TOLERANCE

    @property
    def words(self) -> str:
        """Say it in one line."""
        return (
            f"{self.rows} rows, {self.labels_differ} labels differ, largest difference "
            f"{self.largest:.3g}"
        )


def agreement(found: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]) -> SourceAgreement:
    """Compare answers with the source's answers, by name.

    Raises:
        AccuracyError: When shapes differ.
    """
    differ, largest, rows = 0, 0.0, 0
    for name, want in source.items():
        got, want = np.asarray(found[name]), np.asarray(want)
        rows = len(want)
        if got.shape != want.shape:
            raise AccuracyError(
                f"{name!r} must have the shape of the source's answer, {want.shape}, but has "
                f"{got.shape}"
            )
        if want.dtype.kind == "f":
            largest = max(largest, _difference(got.astype(np.float64), want.astype(np.float64)))
        else:
            differ += int((got != want).reshape(rows, -1).any(axis=1).sum())
    return SourceAgreement(rows, differ, largest)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    same = (np.isnan(got) & np.isnan(want)) | (got == want)
    with np.errstate(invalid="ignore"):
        away = np.abs(got - want) / np.maximum(1.0, np.abs(want))
    found = np.where(same, 0.0, np.where(np.isfinite(away), away, np.inf))
    return float(found.max(initial=0.0))

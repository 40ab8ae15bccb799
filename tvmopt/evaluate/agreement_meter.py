"""Top-1 agreement of a model with the float model: counted, or expected from all scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmopt.evaluate.agreement import Agreement, excess
from tvmopt.evaluate.drop_interval import Interval, of_agreement, of_expected
from tvmopt.evaluate.expected_disagreement import ExpectedDisagreement


class AgreementMeter:
    """Accumulate scores of batches.

    Args:
        is_expected: Whether agreement is the expected one, which chance moves less: a count of 640
            rows, of which 1 % differ, has a standard error of 0.004.

    Attributes:
        counted: The rows.
    """

    def __init__(self, is_expected: bool) -> None:
        self.counted = Agreement()
        self._expected = ExpectedDisagreement() if is_expected else None

    def add(
        self, actual: np.ndarray, expected: np.ndarray, again: Sequence[np.ndarray] = ()
    ) -> None:
        """Add a batch, see :meth:`.agreement.Agreement.add`."""
        self.counted.add(actual, expected, again)
        if self._expected is not None:
            self._expected.add(actual, expected, again)

    def result(self, why: str) -> tuple[float, str]:
        """Return the agreement and what it is, as words; needs a row.

        Args:
            why: Why agreement is what counts.
        """
        rows = self.counted
        if self._expected is None:
            value, own = rows.with_margin, rows.own
            ties = rows.with_margin - rows.strict
            words = f"top-1 agreement ({why}), of it {ties:.4f} near ties of the float model"
        else:
            shares = self._expected.losses().mean(axis=0)
            value, own = float(1.0 - excess(shares)), float(shares[2])
            words = (
                f"top-1 agreement ({why}), expected from all scores; of {rows.rows} rows "
                f"{rows.strict:.4f} agree, {rows.with_margin:.4f} with near ties of the float model"
            )
        if rows.draws:
            words += f", which changes {own:.4f} of the rows when inputs are rounded anew"
        return value, words

    def interval(self) -> Interval:
        """Return the 95% interval of the loss of agreement."""
        if self._expected is None:
            return of_agreement(self.counted.losses())
        return of_expected(self._expected.influences())

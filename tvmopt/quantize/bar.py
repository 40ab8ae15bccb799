"""Accuracy bar of a converted model, with safety margins for small samples."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

from tvmopt.device import dtypes
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.drop_interval import CLUMP, ERRORS_OF_INTERVAL, Interval, unseen_drop

_LEAST_LOSS = 1e-9  # 1 - cosine that float32 cannot distinguish from 0
_LEAST_BATCHES = 4  # minimum for an estimate of the spread


@dataclasses.dataclass(frozen=True)
class MeasuredAccuracy:
    """Measured accuracy of a converted model on some batches.

    Attributes:
        accuracy: Accuracy over all batches.
        rows: Number of rows counted for the accuracy: one per sample, or several.
        drops: Accuracy loss of each batch.
        losses: 1 - cosine of each batch, to extrapolate to other samples; empty when the batches
            are not a random choice.
    """

    accuracy: Accuracy
    rows: int
    drops: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bar:
    """Accuracy bar that a skip set must meet.

    Attributes:
        max_drop: Allowed accuracy loss (0.01: one sample in a hundred). 0 uses the cosine alone
            where the accuracy is fidelity or top-1; a metric of the user must then not lose.
        margin: Fraction of the allowed cosine loss that the measured samples may use, because
            evaluation uses other samples.
        tail_margin: Fraction of the allowed cosine loss that one batch in a hundred may be
            expected to exceed, see :func:`expected_tail`.
        standard_errors: Number of standard errors of the accuracy drop added to the drop before
            the comparison with ``max_drop``. Three, because the best of about twenty sets is
            proposed and then evaluated on other samples.
    """

    max_drop: float = 0.01
    margin: float = 0.3
    tail_margin: float = 0.5
    standard_errors: float = 3.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: When a value is out of range.
        """
        if not self.max_drop >= 0:
            raise ConfigError(f"max_drop must be at least 0, but got {self.max_drop!r}")
        for name in ("margin", "tail_margin"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"{name} must be above 0 and at most 1, but got {value!r}")
        if not self.standard_errors >= 0:
            raise ConfigError(f"standard_errors must be at least 0, but got {self.standard_errors}")

    def stricter(self) -> Bar:
        """Return a stricter bar for the best of many sets, some of which meet a bar by chance."""
        return dataclasses.replace(self, margin=self.margin / 2)

    def cosine_loss(self, dtype: str) -> float:
        """Return the allowed 1 - cosine on the measured samples."""
        return self.margin * dtypes.dtype(dtype).cosine_loss

    def counts(self, rows: int, samples: int) -> bool:
        """Return whether this many rows and samples can resolve the allowed drop."""
        return rows > 0 and self._drop_holds(0.0, rows, samples, ())

    def samples_to_tell(self, rows_a_sample: float) -> int:
        """Return the least number of samples that can resolve the allowed drop, if it is above 0.

        Args:
            rows_a_sample: Rows of a sample that count for the accuracy.
        """
        samples = 1
        while not self.counts(int(rows_a_sample * samples), samples):
            samples *= 2
        return samples

    def holds(self, found: MeasuredAccuracy, dtype: str) -> bool:
        """Return whether the outputs are close to the float model's, or the accuracy is.

        The smallest cosine of an output must be at least 0.99 (int8) or 0.999 (16-bit floats), or
        the accuracy drop at most ``max_drop``; both tightened by the margins.
        """
        if self._is_near(found, dtype):
            return True
        samples = found.accuracy.samples
        if not self.counts(found.rows, samples):
            return False
        return self._drop_holds(found.accuracy.drop, found.rows, samples, found.drops)

    def holds_by_metric(
        self,
        found: MeasuredAccuracy,
        dtype: str,
        interval: Callable[[], Interval | None],
        is_close: bool = False,
    ) -> bool:
        """Return whether a metric of the user loses at most ``max_drop``.

        Few samples may not tell. Outputs close to the float model's then hold, unless the metric
        clearly loses more. With ``max_drop=0`` a measured loss never holds: the evaluation, which
        compares the drop with ``max_drop``, refuses any loss, however few the samples.

        Args:
            found: The metric's accuracy, and closeness to the float model.
            dtype: The dtype of the converted layers.
            interval: Returns the 95% interval of the drop, paired by sample; None where unknown.
            is_close: Whether other evidence than the cosine says that outputs are close: few rows
                of scores are expected to change their class.
        """
        near = is_close or self._is_near(found, dtype)
        drop, samples = found.accuracy.drop, found.accuracy.samples
        if self.max_drop == 0 and not drop <= 0:
            return False
        tells = self.counts(samples, samples)
        if near and drop <= self.max_drop:
            return True
        if drop > self.max_drop and (tells or not near):
            return False
        bounds = interval()
        if bounds is None:
            return near
        low, high = bounds
        if near:
            return low <= self.max_drop
        # Where no resample differs, nothing was seen of what a sample may lose.
        errors = self.standard_errors / ERRORS_OF_INTERVAL
        return (tells or low < high) and drop + errors * max(0.0, high - drop) <= self.max_drop

    def is_likely(self, drop: float, interval: Interval | None, samples: int) -> bool:
        """Return whether a drop is within the limit by one standard error, a probability of 84 %.

        Args:
            drop: The drop of the accuracy.
            interval: Its 95% interval; None where unknown.
            samples: Number of samples that were measured.
        """
        if interval is None or self.max_drop == 0:
            return False
        return drop + self._spread(drop, interval, samples) / ERRORS_OF_INTERVAL <= self.max_drop

    def samples_to_decide(
        self, drop: float, interval: Interval, samples: int, *, of_metric: bool
    ) -> int:
        """Return the number of samples that show a drop within the limit, if it stays the same.

        The interval shrinks with the root of the number of samples.

        Args:
            drop: The drop, below the limit.
            interval: Its 95% interval.
            samples: Number of samples that were measured.
            of_metric: Whether :meth:`holds_by_metric` decides, else :meth:`holds_by_mean`.
        """
        errors = self.standard_errors / ERRORS_OF_INTERVAL if of_metric else 1.0
        wanted = max(self.max_drop - drop, 1e-3 * self.max_drop)
        ratio = errors * self._spread(drop, interval, samples) / wanted
        return max(samples + 1, math.ceil(samples * ratio**2))

    def _spread(self, drop: float, interval: Interval, samples: int) -> float:
        """Return the width of the interval above the drop, at least what samples leave open."""
        return max(interval[1] - drop, unseen_drop(samples))

    def holds_by_mean(
        self, found: MeasuredAccuracy, dtype: str, drop: float, interval: Interval | None
    ) -> bool:
        """Return whether a mean over samples is at most ``max_drop``, with 95% confidence.

        With fewer than four batches the spread is unknown: the outputs must then be close to the
        float model's, too.

        Args:
            found: Closeness to the float model.
            dtype: The dtype of the converted layers.
            drop: The mean, a drop of the accuracy.
            interval: Its 95% interval; None where unknown.
        """
        if self.max_drop == 0:
            return self._is_near(found, dtype)
        if interval is None or len(found.drops) < _LEAST_BATCHES:
            return self._is_near(found, dtype) and drop <= self.max_drop
        return interval[1] <= self.max_drop

    def distance(self, cosine: float, losses: Sequence[float], dtype: str) -> float:
        """Return the cosine loss over the allowed one; outputs are close where it is at most 1.

        Args:
            cosine: Smallest cosine with the float model's outputs.
            losses: As of :class:`MeasuredAccuracy`.
            dtype: The dtype of the converted layers; one that loses something.
        """
        allowed = self.tail_margin * dtypes.dtype(dtype).cosine_loss
        return max((1 - cosine) / self.cosine_loss(dtype), expected_tail(losses) / allowed)

    def _is_near(self, found: MeasuredAccuracy, dtype: str) -> bool:
        near = 1 - found.accuracy.cosine <= self.cosine_loss(dtype)
        allowed = self.tail_margin * dtypes.dtype(dtype).cosine_loss
        return near and expected_tail(found.losses) <= allowed

    def _drop_holds(self, drop: float, rows: int, samples: int, drops: Sequence[float]) -> bool:
        # Zero wrong rows do not imply a zero error rate, and the first wrong row may come with
        # other rows of its sample.
        share = min(max(drop, 1 / rows), 1.0)
        error = max(math.sqrt(share * (1 - share) / rows), CLUMP / samples)
        if len(drops) >= _LEAST_BATCHES:
            error = max(error, statistics.stdev(drops) / math.sqrt(len(drops)))
        return drop + self.standard_errors * error <= self.max_drop


def expected_tail(losses: Sequence[float]) -> float:
    """Return the loss that one batch in a hundred exceeds, for log-normal losses.

    In most models all samples have similar losses, and the result is near the observed maximum.
    Where losses spread over orders of magnitude, a dozen samples do not show the worst case. The
    result is 0 for fewer than four batches.
    """
    if len(losses) < _LEAST_BATCHES:
        return 0.0
    logs = [math.log(max(loss, _LEAST_LOSS)) for loss in losses]
    spread = statistics.NormalDist(statistics.fmean(logs), max(statistics.stdev(logs), 1e-6))
    return math.exp(spread.inv_cdf(0.99))

"""95% intervals of an accuracy drop, paired by sample: both models saw the same samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.evaluate.agreement import excess
from tvmopt.metrics.metric import Metric

Interval = tuple[float, float]
_CONFIDENCE = 0.95
_PERCENTILES = (100 * (1 - _CONFIDENCE) / 2, 100 * (1 + _CONFIDENCE) / 2)
_RESAMPLES, _BYTES = 2000, 1 << 26
# Of a metric that is computed anew for each resample.
_MOST_METRIC, _LEAST_METRIC, _METRIC_S = 400, 50, 2.0
# Multiple of the time limit until there are the least resamples: without them nothing is known.
_PATIENCE = 10
_SEED = 20261127
#: Standard errors from a drop to the end of its 95% interval.
ERRORS_OF_INTERVAL = 1.96
#: Fraction of a sample's rows expected to be wrong together.
CLUMP = 0.1


def of_losses(losses: np.ndarray, *, counted: bool = True) -> Interval:
    """Return the interval of the mean loss.

    Samples without a single loss (or gain) do not show that there is none: ``n`` of them leave open
    a rate of ``1 - 0.025 ** (1 / n)``, which they would miss once in forty times.

    Args:
        losses: What each sample loses against the float model, from -1 to 1; at least one.
        counted: Whether a sample's loss counts rows. Any sample shows an error of the outputs, so
            a mean of these leaves no rate open.
    """
    low, high = _percentiles(losses[:, None], lambda means: means[:, 0])
    return _with_unseen(low, high, losses) if counted else (low, high)


def of_agreement(shares: np.ndarray) -> Interval:
    """Return the interval of what a model loses in top-1 agreement, as counted.

    Args:
        shares: Of each sample, (samples, 3): see :meth:`.agreement.Agreement.losses`.
    """
    low, high = _percentiles(shares, excess)
    return _with_unseen(low, high, shares[:, 0] + shares[:, 1])


def of_expected(shares: np.ndarray) -> Interval:
    """Return the interval of the top-1 agreement that a model is expected to lose.

    Args:
        shares: Of each sample, (samples, 3): ``influences`` of
            :class:`.expected_disagreement.ExpectedDisagreement`, or its ``losses``, which leave out
            that errors differ between samples.
    """
    low, high = _percentiles(shares, excess)
    drop = float(excess(shares.mean(axis=0)))
    return max(0.0, low), max(high, drop + unseen_drop(len(shares)))


def unseen_drop(samples: int) -> float:
    """Return the drop that this many samples leave open, above the one that they show."""
    return ERRORS_OF_INTERVAL * CLUMP / samples


def _percentiles(rows: np.ndarray, value: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Return percentiles of a value of the mean row, (resamples, columns), over resamples."""
    count, columns = rows.shape
    rng = np.random.default_rng(_SEED)
    at_once = max(1, _BYTES // (8 * count * columns))
    means = [
        rows[rng.integers(count, size=(min(at_once, _RESAMPLES - done), count))].mean(axis=1)
        for done in range(0, _RESAMPLES, at_once)
    ]
    low, high = np.percentile(value(np.concatenate(means)), _PERCENTILES)
    return float(low), float(high)


def _with_unseen(low: float, high: float, losses: np.ndarray) -> Interval:
    """Return the interval with the rate that samples without a loss, or a gain, leave open."""
    unseen = 1 - ((1 - _CONFIDENCE) / 2) ** (1 / len(losses))
    if high >= 0 and not (losses > 0).any():
        high = max(high, unseen)
    if low <= 0 and not (losses < 0).any():
        low = min(low, -unseen)
    return low, high


def of_metric(
    metric: Metric,
    kept: Sequence[Sequence[np.ndarray]],
    reference: Sequence[Sequence[np.ndarray]],
    labels: np.ndarray,
    limit_s: float = _METRIC_S,
) -> Interval | None:
    """Return the interval of what a metric loses; None where resamples of it make no sense.

    Args:
        metric: The metric.
        kept: What it kept of each batch of the model's outputs.
        reference: What it kept of each batch of the float model's outputs.
        labels: Labels of all samples.
        limit_s: Most seconds, ten times as many until there are fifty resamples; None where these
            are too few for fifty.
    """
    count = len(labels)
    arrays = [
        [np.concatenate(parts) for parts in zip(*one, strict=True)] for one in (kept, reference)
    ]
    if count < 2 or any(len(array) != count for side in arrays for array in side):
        return None
    rng = np.random.default_rng(_SEED)
    sign = 1.0 if metric.larger_is_better else -1.0
    drops: list[float] = []
    start = time.monotonic()
    for _ in range(_MOST_METRIC):
        patience = _PATIENCE if len(drops) < _LEAST_METRIC else 1
        if time.monotonic() > start + patience * limit_s:
            break
        at = rng.integers(count, size=count)
        own, theirs = ([[array[at] for array in side]] for side in arrays)
        try:
            drops.append(sign * (metric(theirs, labels[at]) - metric(own, labels[at])))
        except ConfigError:  # a resample may lack a class that the metric needs
            continue
    if len(drops) < _LEAST_METRIC:
        return None
    low, high = np.percentile(drops, _PERCENTILES)
    return float(low), float(high)


def interval_words(interval: Interval) -> str:
    """Say what an interval is."""
    low, high = interval
    return f"95% interval {low:+.4f} to {high:+.4f}"


def confidence_words(interval: Interval | None, limit: float) -> str:
    """Say whether a drop keeps to a limit with 95% confidence; empty where that is not known."""
    if interval is None:
        return ""
    (low, high), shown = interval, interval_words(interval)
    if high <= limit:
        return f"{shown}: within the limit"
    if low > limit:
        return f"{shown}: over the limit"
    return f"{shown}: undecided, since these samples are too few to tell"

"""Bound the accuracy loss of a converted model on samples that were not measured.

The loss of a batch is ``1 - cosine`` of its worst output. Losses of batches are close to
log-normal: positive, and spread by factors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_SETS = 20  # that are measured; the best of them is chosen, see tvmopt.quantize.bar
_CONFIDENCE = 1 - 0.05 / _SETS  # so that 95% holds for all of them at once (Bonferroni)
_LEAST = 3  # batches; fewer do not show a spread
_SMALLEST = 1e-9  # 1 - cosine that float32 cannot tell from 0
_RESOLUTION = 1e-4  # a hundredth of the loss that int8 may have
_LARGEST = 2.0  # 1 - cosine of opposite outputs
_MOST_VARIANCE = 3.0  # of logarithms; a larger one is that of a few losses near 0
_PRECISION = 0.1  # standard error of the mean loss, relative to it


def loss_bound(losses: Sequence[float]) -> float | None:
    """Return the 95% upper bound of the mean loss on as many other batches of the same kind.

    The bound is the upper end of the prediction interval of the mean's logarithm, by Student's t.
    It holds for the best of twenty sets of layers, whose measured loss is small in part by chance.
    The spread of the losses relative to their mean is the sample's, or that of the log-normal
    distribution with the sample's spread of logarithms, whichever is larger: a few batches may not
    hold the large losses that dominate the mean. It is at least 1e-4: where outputs saturate, most
    losses are far below, and say nothing about the few that are not.

    Args:
        losses: Losses of batches drawn at random.

    Returns:
        None for fewer than three batches.
    """
    count = len(losses)
    if count < _LEAST:
        return None
    from scipy import stats  # a stage's process imports it only where it needs it

    quantile = float(stats.t.ppf(_CONFIDENCE, count - 1)) * math.sqrt(2 / count)
    mean = statistics.fmean(losses)
    variance = statistics.variance(math.log(max(loss, _SMALLEST)) for loss in losses)
    spread = math.sqrt(math.expm1(min(variance, _MOST_VARIANCE)))
    if mean > 0:
        spread = max(spread, statistics.stdev(losses) / mean)
    return min(_LARGEST, max(_RESOLUTION, mean * math.exp(quantile * spread)))


def batches_for_mean(losses: Sequence[float]) -> int:
    """Return the number of batches whose mean loss has a standard error of a tenth of the mean.

    Args:
        losses: Losses of a few batches drawn at random.
    """
    mean = statistics.fmean(losses)
    if len(losses) < _LEAST or mean <= _SMALLEST:
        return len(losses)
    return math.ceil((statistics.stdev(losses) / (_PRECISION * mean)) ** 2)

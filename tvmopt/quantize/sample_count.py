"""How many samples the sensitivity analysis measures on, and which."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvmopt.evaluate.dataset import Dataset
from tvmopt.quantize.all_converted import AllConverted
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.loss_bound import batches_for_mean

if TYPE_CHECKING:
    import onnxruntime as ort

FIRST_SAMPLES = 16  # samples that tell how many are needed
_SHARE_OF_FIRST = 0.2  # of the time limit, for the first samples


def choose_samples(data: Dataset, samples: int, seed: int) -> Dataset:
    """Return ``samples`` random samples, in the order of the data; all where it has no more.

    Whole inputs may be few; rows of a batch are taken in full batches, at least one.
    """
    return data if data.samples <= samples else data.take(_indices(data, samples, seed))


def positions_of_fewer(data: Dataset, fewer: int, more: int, seed: int) -> list[int]:
    """Return where the batches of :func:`choose_samples` for ``fewer`` are in those for ``more``.

    Returns:
        Position by position of the fewer batches; empty where batches hold several samples.
    """
    if data.batch_size > 1:
        return []
    first, second = (_indices(data, samples, seed) for samples in (fewer, more))
    return [int(at) for at in np.searchsorted(second, first)]


def _indices(data: Dataset, samples: int, seed: int) -> np.ndarray:
    """Return indices of random samples, sorted; more samples hold the fewer of the same seed."""
    if data.samples <= samples:
        return np.arange(data.samples)
    count = max(samples, min(data.batch_size, data.samples))
    order = np.random.default_rng(seed).permutation(data.samples)
    return np.sort(order[:count])


def first_samples(
    session: ort.InferenceSession, data: Dataset, dtypes: int, time_limit_s: float
) -> int:
    """Return how many samples to begin with: fewer where the float model is slow.

    The float model and the model in each dtype run on them, an int8 model maybe twice as long.
    """
    inputs = data.batch(0).inputs
    session.run(None, inputs)
    start = time.monotonic()
    session.run(None, inputs)
    once = time.monotonic() - start
    batches = int(_SHARE_OF_FIRST * time_limit_s / ((1 + 2 * dtypes) * max(once, 1e-6)))
    if batches * data.batch_size >= FIRST_SAMPLES:
        return FIRST_SAMPLES
    return max(1, batches) * data.batch_size


def wanted_samples(analysis: Analysis, starts: Mapping[str, AllConverted], most_s: float) -> int:
    """Return the number of samples to measure on, judged by a few.

    Enough for a mean loss with a standard error of a tenth, and for the accuracy bar to be told;
    not so many that a measurement of one model takes too long.

    Args:
        analysis: The analysis on a few samples.
        starts: Verdicts on them.
        most_s: Seconds that a measurement of one model may take.
    """
    few = sum(batch.valid for batch in analysis.batches)
    a_batch = few / len(analysis.batches)
    batches = max(batches_for_mean(start.verdict.losses or (0.0,)) for start in starts.values())
    wanted = max(math.ceil(batches * a_batch), analysis.judge.samples_to_tell())
    return min(wanted, int(a_batch * most_s / max(analysis.judge.batch_s, 1e-6)))


def too_few_samples(analysis: Analysis) -> str:
    """Return that the samples cannot resolve the allowed drop; empty where they can."""
    samples = sum(batch.valid for batch in analysis.batches)
    needed = analysis.judge.samples_to_tell()
    if samples >= needed or not analysis.judge.by_closeness:
        return ""
    return (
        f"{samples} samples cannot show an accuracy drop of {analysis.bar.max_drop:g}, which takes "
        f"{needed}; closeness to the float model decides"
    )

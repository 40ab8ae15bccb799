"""Distribution-free statistics of latency samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


@dataclasses.dataclass(frozen=True)
class LatencySummary:
    """Latency in milliseconds; ``ci_low`` to ``ci_high`` is a 95% interval of the median."""

    mean: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float
    ci_low: float
    ci_high: float
    samples: int

    def metrics(self) -> dict[str, float]:
        """Return run metrics, ``latency_ms_p50`` and so on."""
        values = dataclasses.asdict(self)
        values.pop("samples")
        return {f"latency_ms_{name}": value for name, value in values.items()}


def summarise(seconds: Sequence[float]) -> LatencySummary:
    """Summarise latency samples given in seconds."""
    ms = np.sort(np.asarray(seconds, dtype=np.float64)) * 1e3
    low, high = median_interval(len(ms))
    p50, p90, p95, p99 = (float(p) for p in np.percentile(ms, [50, 90, 95, 99]))
    return LatencySummary(
        mean=float(ms.mean()),
        std=float(ms.std(ddof=1)) if len(ms) > 1 else 0.0,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        ci_low=float(ms[low]),
        ci_high=float(ms[high]),
        samples=len(ms),
    )


def median_interval(samples: int, confidence: float = 0.95) -> tuple[int, int]:
    """Return indices (from 0) of the order statistics that bound the median.

    The number of samples below the median is binomial(n, 1/2). The result is the narrowest
    symmetric pair with at least ``confidence``, or the extremes when there are too few samples.
    """
    # In integers: importing scipy.stats takes longer than the measurement of a small model.
    tail = Fraction((1 - confidence) / 2) * 2**samples
    quantile, ways = 0, 1  # number of outcomes with ``quantile`` samples below the median
    total = ways
    while total < tail:
        ways = ways * (samples - quantile) // (quantile + 1)
        quantile += 1
        total += ways
    low = max(quantile - 1, 0)
    return low, samples - 1 - low

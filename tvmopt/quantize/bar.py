"""When a converted model is good enough, and by how much more it must be so on few samples."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from tvmopt.device import dtypes
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy

_LEAST_LOSS = 1e-9  # what float32 cannot tell from 0
_LEAST_BATCHES = 4  # from which a spread is estimated
_CLUMP = 0.1  # share of the rows of a sample that are expected to be wrong together


@dataclasses.dataclass(frozen=True)
class Measured:
    """A converted model on some batches.

    Attributes:
        accuracy: Over all of them.
        rows: Rows that the accuracy was counted on: one for each sample, or several.
        drops: Accuracy lost on each batch.
        losses: 1 - cosine on each batch, to judge by what others may lose; empty when the batches
            were not chosen at random.
    """

    accuracy: Accuracy
    rows: int
    drops: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a skip set must keep.

    Attributes:
        max_drop: Accuracy it may lose (0.01: one sample in a hundred); 0 leaves it to the cosine.
        margin: Share of the allowed loss of cosine that may be used up on the samples measured,
            since others will be evaluated.
        tail_margin: Share of the allowed loss of cosine that one batch in a hundred may be expected
            to exceed, see :func:`expected_tail`.
        standard_errors: Of the drop of accuracy, that must fit under ``max_drop`` with it. Three,
            since the best of some twenty sets is proposed, and is judged on other samples again.
    """

    max_drop: float = 0.01
    margin: float = 0.3
    tail_margin: float = 0.5
    standard_errors: float = 3.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: When one breaks its rule.
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
        """For the best of many sets, some of which meet a bar by luck."""
        return dataclasses.replace(self, margin=self.margin / 2)

    def cosine_loss(self, dtype: str) -> float:
        """How far a cosine may be from 1 on the samples measured."""
        return self.margin * dtypes.dtype(dtype).cosine_loss

    def counts(self, rows: int, samples: int) -> bool:
        """Whether so many rows, of so many samples, can show a drop as small as is allowed."""
        return rows > 0 and self._drop_holds(0.0, rows, samples, ())

    def holds(self, found: Measured, dtype: str) -> bool:
        """Whether the outputs are close to the float model's, or the accuracy is.

        The smallest cosine of an output must be at least 0.99 (int8) or 0.999 (16-bit types), or
        the accuracy may drop by ``max_drop``; less the margins.
        """
        near = 1 - found.accuracy.cosine <= self.cosine_loss(dtype)
        allowed = self.tail_margin * dtypes.dtype(dtype).cosine_loss
        if near and expected_tail(found.losses) <= allowed:
            return True
        samples = found.accuracy.samples
        if not self.counts(found.rows, samples):
            return False
        return self._drop_holds(found.accuracy.drop, found.rows, samples, found.drops)

    def _drop_holds(self, drop: float, rows: int, samples: int, drops: Sequence[float]) -> bool:
        # That no row is wrong does not mean that none would be, and the first that is may bring
        # others of its sample with it.
        share = min(max(drop, 1 / rows), 1.0)
        error = max(math.sqrt(share * (1 - share) / rows), _CLUMP / samples)
        if len(drops) >= _LEAST_BATCHES:
            error = max(error, statistics.stdev(drops) / math.sqrt(len(drops)))
        return drop + self.standard_errors * error <= self.max_drop


def expected_tail(losses: Sequence[float]) -> float:
    """The loss that one batch in a hundred exceeds, if the logarithms of losses are normal.

    In most models losses of all samples are alike and this is near the largest seen; where they
    spread over powers of ten, a dozen samples do not show the worst. 0 for fewer than four.
    """
    if len(losses) < _LEAST_BATCHES:
        return 0.0
    logs = [math.log(max(loss, _LEAST_LOSS)) for loss in losses]
    spread = statistics.NormalDist(statistics.fmean(logs), max(statistics.stdev(logs), 1e-6))
    return math.exp(spread.inv_cdf(0.99))

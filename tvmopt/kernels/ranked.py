"""What a space gives: a hint, and what the model expects of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from tvmopt.kernels.hint import Hint

_Hint = TypeVar("_Hint", bound=Hint)
#: Length of every feature vector.
FEATURES = 20
# What a family's best may be modelled to cost more than the best of all, to be tried early.
_NEAR = 1.3


@dataclasses.dataclass(frozen=True)
class Ranked(Generic[_Hint]):
    """A hint, and what the model expects of it.

    Attributes:
        hint: The configuration.
        cycles: Cycles of the busiest core, as modelled.
        facts: What the model knew; the re-ranker learns from it where the model errs.
    """

    hint: _Hint
    cycles: float
    facts: tuple[float, ...] = ()

    @property
    def features(self) -> list[float]:
        """``FEATURES`` numbers: of the configuration, and the parts of its modelled cost."""
        facts = [math.log2(max(f, 1e-6)) for f in self.facts]
        return (self.hint.features + facts + [0.0] * FEATURES)[:FEATURES]


def spread(ranked: Sequence[Ranked[_Hint]], count: int) -> list[Ranked[_Hint]]:
    """``count`` configurations to measure first: the best, and the best of families near it.

    A model's ties are among neighbours, and where it errs it errs on all of a family. One of each
    tells more than many of the first.

    Args:
        ranked: The configurations, the best first.
        count: How many.
    """
    seen: set[tuple[object, ...]] = set()
    first: list[Ranked[_Hint]] = []
    others: list[Ranked[_Hint]] = []
    for one in ranked:
        is_new = one.hint.group not in seen and one.cycles <= _NEAR * ranked[0].cycles
        seen.add(one.hint.group)
        (first if is_new else others).append(one)
    return [*first, *others][:count]

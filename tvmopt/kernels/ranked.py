"""Ranked: a configuration with its predicted cycles; top-k selection spread over groups."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from tvmopt.kernels.hint import Hint

_Hint = TypeVar("_Hint", bound=Hint)
#: Length of every feature vector.
FEATURES = 20
# A group's best joins the top-k early if its predicted cycles are within this ratio of the top-1.
_NEAR = 1.3


@dataclasses.dataclass(frozen=True)
class Ranked(Generic[_Hint]):
    """A configuration with its predicted cycles.

    Attributes:
        hint: The configuration.
        cycles: Predicted cycles of the busiest core.
        facts: Intermediate values of the cost model; features of the learned re-ranker.
    """

    hint: _Hint
    cycles: float
    facts: tuple[float, ...] = ()

    @property
    def features(self) -> list[float]:
        """Feature vector of length ``FEATURES``: configuration, then log2 of the cost's parts."""
        facts = [math.log2(max(f, 1e-6)) for f in self.facts]
        return (self.hint.features + facts + [0.0] * FEATURES)[:FEATURES]


def spread(ranked: Sequence[Ranked[_Hint]], count: int) -> list[Ranked[_Hint]]:
    """Return the ``count`` configurations to measure first: the best of each group near the top-1.

    The cost model ties neighbouring configurations, and its error is shared by a whole group
    (:attr:`Hint.group`). One configuration per group is more informative than many of one group.

    Args:
        ranked: The configurations in ranked order.
        count: Number of configurations.
    """
    seen: set[tuple[object, ...]] = set()
    first: list[Ranked[_Hint]] = []
    others: list[Ranked[_Hint]] = []
    for one in ranked:
        is_new = one.hint.group not in seen and one.cycles <= _NEAR * ranked[0].cycles
        seen.add(one.hint.group)
        (first if is_new else others).append(one)
    return [*first, *others][:count]

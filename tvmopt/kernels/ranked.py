"""What a space gives: a hint, and what the model expects of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tvmopt.kernels.cpu.hint import INLINED, Hint

#: Length of every feature vector.
FEATURES = 20
# What a family's best may be modelled to cost more than the best of all, to be tried early.
_NEAR = 1.3


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A hint, and what the model expects of it.

    Attributes:
        hint: The configuration.
        cycles: Cycles of the busiest core, as modelled.
        facts: What the model knew; the re-ranker learns from it where the model errs.
    """

    hint: Hint
    cycles: float
    facts: tuple[float, ...] = ()

    @property
    def family(self) -> tuple[object, ...]:
        """What configurations share that the model errs on alike: vectors, loop order, parts."""
        hint = self.hint
        width = hint.block[-1:], hint.task[-1:]
        inlined = hint.stage == INLINED
        return hint.template, *width, hint.order, hint.rstep > 0, hint.accumulate, inlined

    @property
    def features(self) -> list[float]:
        """``FEATURES`` numbers: of the hint, of the model's parts, and which template it is."""
        hint = self.hint
        order = list(hint.order)
        last = len(order) - 1
        column = order.index(last) / max(1, last) if last in order else 0.0
        facts = [math.log2(max(f, 1e-6)) for f in self.facts]
        common = [
            float(hint.parallel),
            float(hint.stage),
            float(hint.rstep),
            column,
            float(hint.tasks),
            float(hint.vectors),
            float(len(hint.template)),
            float(hint.block[-1] if hint.block else 0),
            float(math.prod(hint.block[:-1])),
            float(hint.pack == "call"),
            float(hint.accumulate),
            math.log2(1 + sum(hint.task)),
        ]
        return (common + facts + [0.0] * FEATURES)[:FEATURES]


def spread(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """``count`` configurations to measure first: the best, and the best of families near it.

    A model's ties are among neighbours, and where it errs it errs on all of a family. One of each
    tells more than many of the first.

    Args:
        ranked: The configurations, the best first.
        count: How many.
    """
    seen: set[tuple[object, ...]] = set()
    first: list[Ranked] = []
    others: list[Ranked] = []
    for one in ranked:
        is_new = one.family not in seen and one.cycles <= _NEAR * ranked[0].cycles
        seen.add(one.family)
        (first if is_new else others).append(one)
    return [*first, *others][:count]

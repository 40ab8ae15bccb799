"""What a space gives: a hint, and what the model expects of it."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.schedule.hint import Hint

#: Length of every feature vector.
FEATURES = 18


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
        ]
        return (common + facts + [0.0] * FEATURES)[:FEATURES]

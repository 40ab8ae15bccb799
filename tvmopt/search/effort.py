"""Tuning effort: strategy, budget and granularity of a trial, ordered by price."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tvmopt.choices import GRANULARITIES, MEASURING, one_of
from tvmopt.errors import ConfigError

#: Tuning strategies, the price rising.
RISING = ("none", "default", "fast", "metaschedule")
#: Field of the tune configuration that holds the size of an effort.
_SIZES = {"fast": "topk", "metaschedule": "trials"}
_TEXT = re.compile(rf"({'|'.join(RISING)})(?:-(\d+))?(?:-({'|'.join(GRANULARITIES)}))?")


@dataclasses.dataclass(frozen=True, order=True)
class Effort:
    """Tuning effort: strategy, budget and granularity.

    Attributes:
        strategy: Name of the tuning strategy.
        size: ``topk`` of ``fast``, ``trials`` of ``metaschedule``, else 0.
        granularity: One of ``GRANULARITIES``; ``"subgraph"`` where nothing is measured.

    Raises:
        ConfigError: When there is no such granularity, or the strategy has no choice of it.
    """

    strategy: str
    size: int = 0
    granularity: str = "subgraph"

    def __post_init__(self) -> None:
        allowed = GRANULARITIES if self.measures else ("subgraph",)
        one_of(f"granularity of the effort {self.strategy}", self.granularity, allowed)

    @property
    def measures(self) -> bool:
        """Return whether candidates are measured; only then granularity matters."""
        return self.strategy in MEASURING

    @property
    def price(self) -> tuple[int, int, bool]:
        """Return a sort key, cheapest first; granularity operator has fewer tasks than subgraph."""
        return (RISING.index(self.strategy), self.size, self.granularity == "subgraph")

    def settings(self) -> dict[str, Any]:
        """Return the parameters of a request that the effort sets."""
        sizes = {_SIZES[self.strategy]: self.size} if self.size else {}
        return {"strategy": self.strategy, "granularity": self.granularity, **sizes}

    def __str__(self) -> str:
        size = [str(self.size)] if self.size else []
        other = [self.granularity] if self.granularity != "subgraph" else []
        return "-".join([self.strategy, *size, *other])

    @classmethod
    def parse(cls, text: str) -> Effort:
        """Parse ``"default"``, ``"fast-20"``, ``"fast-20-operator"``, ``"metaschedule-64"``.

        Raises:
            ConfigError: When ``text`` is no effort.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ConfigError(
                "an effort must be a strategy with its size and granularity, such as "
                f"fast-20-operator, but got {text!r}"
            )
        strategy, size, granularity = found.groups()
        return cls(strategy, int(size or 0), granularity or "subgraph")

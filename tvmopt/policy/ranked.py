"""What a space gives: a hint, and what the model expects of it."""

from __future__ import annotations

import dataclasses

from tvmopt.schedule.hint import Hint


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A hint and the cycles of the busiest core that the model expects of it."""

    hint: Hint
    cycles: float

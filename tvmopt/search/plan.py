"""What to try next: cheap efforts for many variants, dear ones for the promising.

Source: asynchronous successive halving, Li et al., "A system for massively parallel hyperparameter
tuning", MLSys 2020. The efforts are the rungs; a variant is taken up a rung when it is among the
best third of those that have finished the one below, and not hopelessly slower than the best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tvmopt.search.space import Choice, Space, Variant

REDUCTION = 3
#: Times as slow as the best of its rung that a variant is not promising any more.
HOPELESS = 2.0
FINISHED, FAILED, RUNNING = "finished", "failed", "running"


@dataclasses.dataclass(frozen=True)
class Tried:
    """A choice that was made.

    Attributes:
        choice: The choice.
        state: ``"finished"``, ``"failed"`` or ``"running"``.
        violation: How much the limits are passed; 0 when feasible.
        values: What is to be small: the latency first.
        inaccurate: Whether it loses more accuracy than is allowed, which no tuning will change.
    """

    choice: Choice
    state: str
    violation: float = 0.0
    values: tuple[float, ...] = ()
    inaccurate: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the better first: feasible ones by latency, then the others by violation."""
        latency = self.values[0] if self.values else float("inf")
        return (self.violation, latency)


Sampler = Callable[[Space, Sequence[Tried], Sequence[Variant]], Variant]
"""Picks one of the variants given last, from what was tried."""


def next_choice(space: Space, tried: Sequence[Tried], sample: Sampler) -> Choice | None:
    """The next choice; None when nothing is left, or not before what is running has ended."""
    promoted = _promotable(space, tried, REDUCTION)
    if promoted is not None:
        return promoted
    made = {t.choice for t in tried}
    first = space.efforts[0]
    untried = [v for v in space.variants() if Choice(v, first) not in made]
    if untried:
        return Choice(sample(space, tried, untried), first)
    if any(t.state == RUNNING for t in tried):
        return None
    return _promotable(space, tried, 1)


def _promotable(space: Space, tried: Sequence[Tried], reduction: int) -> Choice | None:
    """The best of a rung's first ``1 / reduction`` that is not on the next one; highest rung first.

    What is not accurate enough is never taken up. What passes another limit, and what is so slow
    that dearer tuning will not make it the best, is taken up last, and only when all of the rung
    is.
    """
    made = {t.choice for t in tried}
    rungs = list(zip(space.efforts, space.efforts[1:], strict=False))
    for effort, dearer in reversed(rungs):
        rung = [t for t in tried if t.choice.effort == effort and t.state == FINISHED]
        best = sorted(rung, key=lambda t: t.rank)[: len(rung) // reduction]
        for one in best:
            choice = Choice(one.choice.variant, dearer)
            hopeful = one.violation == 0 and one.values[0] <= HOPELESS * best[0].values[0]
            if choice not in made and not one.inaccurate and (hopeful or reduction == 1):
                return choice
    return None

"""Choose the next trial by asynchronous successive halving over tuning efforts.

Source: asynchronous successive halving, Li et al., "A system for massively parallel hyperparameter
tuning", MLSys 2020. The efforts are the rungs. A variant is promoted to the next rung when it
is among the best third of its rung, and not hopelessly slower than the best one.
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
    """State of one trial.

    Attributes:
        choice: The choice.
        state: ``"finished"``, ``"failed"`` or ``"running"``.
        violation: Sum of the relative violations; 0 when feasible.
        values: Objectives to minimise, latency first.
        inaccurate: Whether it loses more accuracy than is allowed, which neither tuning nor another
            layout will change.
    """

    choice: Choice
    state: str
    violation: float = 0.0
    values: tuple[float, ...] = ()
    inaccurate: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """Return a sort key: feasible trials by latency, then the others by violation."""
        latency = self.values[0] if self.values else float("inf")
        return (self.violation, latency)


Sampler = Callable[[Space, Sequence[Tried], Sequence[Variant]], Variant]
"""Picks one of the variants given last, from what was tried."""


def next_choice(
    space: Space, tried: Sequence[Tried], sample: Sampler, waits: bool = True
) -> Choice | None:
    """Return the next choice; None when none is left, or when it depends on running trials.

    Args:
        space: The search space.
        tried: All trials that count.
        sample: Picks the variant when a new one is started.
        waits: Whether to wait for running trials rather than to promote one that is not among the
            best third.
    """
    promoted = _promotable(space, tried, REDUCTION)
    if promoted is not None:
        return promoted
    made = {t.choice for t in tried}
    first = space.efforts[0]
    refused = {_in_any_layout(t.choice.variant) for t in tried if t.inaccurate}
    untried = [
        variant
        for variant in space.variants()
        if Choice(variant, first) not in made and _in_any_layout(variant) not in refused
    ]
    if untried:
        return Choice(sample(space, tried, untried), first)
    if waits and any(t.state == RUNNING for t in tried):
        return None
    return _promotable(space, tried, 1)


def _in_any_layout(variant: Variant) -> Variant:
    return dataclasses.replace(variant, layout="")


def _promotable(space: Space, tried: Sequence[Tried], reduction: int) -> Choice | None:
    """Return the best promotable trial among a rung's first ``1 / reduction``, highest rung first.

    An inaccurate trial is never promoted. A trial that violates another limit, or is too slow to
    become the best, is promoted last, when the whole rung is.
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

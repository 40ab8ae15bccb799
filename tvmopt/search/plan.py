"""Choose the next trial by asynchronous successive halving over tuning efforts.

Source: asynchronous successive halving, Li et al., "A system for massively parallel hyperparameter
tuning", MLSys 2020. The efforts are the rungs. A variant is promoted to the next rung when it
is among the best third of its rung, and not hopelessly slower than the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from tvmopt.search.map_order import following_maps, without_later_maps
from tvmopt.search.space import Choice, Space, Variant
from tvmopt.search.tried import FINISHED, RUNNING, Tried

REDUCTION = 3
#: Times as slow as the best of its rung that a variant is not promising any more; and as slow as in
#: another layout, that a layout is not.
HOPELESS = 2.0

Sampler = Callable[[Space, Sequence[Tried], Sequence[Variant]], Variant]
"""Picks one of the variants given last, from what was tried."""


def next_choice(
    space: Space, tried: Sequence[Tried], sample: Sampler, waits: bool = True
) -> Choice | None:
    """Return the next choice; None when none is left, or when it depends on running trials.

    After an inaccurate map of dtypes comes the next one, before anything is tuned.

    Args:
        space: The search space.
        tried: All trials that count.
        sample: Picks the variant when a new one is started.
        waits: Whether to wait for running trials rather than to promote one that is not among the
            best third.
    """
    refused = {t.choice.variant.in_any_layout for t in tried if t.inaccurate}
    made = {t.choice for t in tried}
    first = space.efforts[0]
    latencies = _least_latencies(tried)
    begun = {(t.choice.variant.in_any_layout, t.choice.variant.layout) for t in tried}
    untried = [
        variant
        for variant in without_later_maps(tried, space.variants())
        if Choice(variant, first) not in made
        and variant.in_any_layout not in refused
        and not _is_in_a_hopeless_layout(variant, begun, latencies)
    ]
    if following := following_maps(tried, untried):
        return Choice(following[0], first)
    promoted = _promotable(space, tried, refused, REDUCTION)
    if promoted is not None:
        return promoted
    if untried:
        return Choice(sample(space, tried, untried), first)
    if waits and any(t.state == RUNNING for t in tried):
        return None
    return _promotable(space, tried, refused, 1)


_InLayout = tuple[Variant, str]
"""A variant in any layout, and a layout."""


def _least_latencies(tried: Sequence[Tried]) -> dict[_InLayout, float]:
    found: dict[_InLayout, float] = {}
    for one in tried:
        if one.state == FINISHED and one.values:
            key = one.choice.variant.in_any_layout, one.choice.variant.layout
            found[key] = min(found.get(key, math.inf), one.values[0])
    return found


def _is_in_a_hopeless_layout(
    variant: Variant, begun: Collection[_InLayout], latencies: Mapping[_InLayout, float]
) -> bool:
    """Return whether another variant was hopelessly slow in this layout, beside a known one.

    Known is a layout in which the given variant was tried, or is being tried: kernels of a layout
    that lacks an instruction, or reads scattered channels, are slow in every dtype.
    """
    known = [layout for one, layout in begun if one == variant.in_any_layout]
    return any(
        layout == variant.layout
        and any(seconds > HOPELESS * latencies.get((other, fast), math.inf) for fast in known)
        for (other, layout), seconds in latencies.items()
    )


def _promotable(
    space: Space, tried: Sequence[Tried], refused: Collection[Variant], reduction: int
) -> Choice | None:
    """Return the best promotable trial among a rung's first ``1 / reduction``, highest rung first.

    A variant that was inaccurate, in any layout, is never promoted. A trial that violates another
    limit, or is too slow to become the best, is promoted last, when the whole rung is.
    """
    made = {t.choice for t in tried}
    rungs = list(zip(space.efforts, space.efforts[1:], strict=False))
    for effort, dearer in reversed(rungs):
        rung = [t for t in tried if t.choice.effort == effort and t.state == FINISHED]
        best = sorted(rung, key=lambda t: t.rank)[: len(rung) // reduction]
        for one in best:
            choice = Choice(one.choice.variant, dearer)
            hopeful = one.violation == 0 and one.values[0] <= HOPELESS * best[0].values[0]
            is_refused = one.choice.variant.in_any_layout in refused
            if choice not in made and not is_refused and (hopeful or reduction == 1):
                return choice
    return None

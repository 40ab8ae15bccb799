"""Sample the next variant to start: each dtype once, in the order of the space, then TPE."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from tvmopt.search.choose import FLOAT
from tvmopt.search.space import Space, Variant
from tvmopt.search.tried import FINISHED, RUNNING, Tried

_ASKS = 30


class VariantSampler:
    """Optuna's TPE over variants at the cheapest effort, after each dtype was begun.

    While no trial that ended is feasible, float32 is begun next: the safe fallback.

    TPE runs on observations in memory, made from the trials for each choice and dropped after it.
    It cannot run on the study itself. A draw that repeats a tried variant is rejected; TPE's
    constant liar must know it, to draw another one, and would write it to the database. Trial zero
    would be an observation, though it lies outside of the space. And a choice is claimed in one
    transaction with its trial, so that no trial exists yet to sample for.

    Args:
        seed: Seed of its random choices; each worker has its own.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, space: Space, tried: Sequence[Tried], untried: Sequence[Variant]) -> Variant:
        """Return one of ``untried``."""
        begun = {t.choice.variant.dtype for t in tried if t.choice in space}
        # the first variants of each dtype come first
        first = [variant for variant in untried if variant.dtype not in begun]
        if first:
            safe = [variant for variant in first if variant.dtype == FLOAT]
            return safe[0] if safe and _needs_fallback(tried) else first[0]
        if len(untried) == 1:
            return untried[0]
        observed = self._observe(space, tried)
        wanted = set(untried)
        for _ in range(_ASKS):
            choice = space.suggest(observed.ask())
            if choice.variant in wanted:
                return choice.variant
        return untried[(self._seed + len(tried)) % len(untried)]

    def _observe(self, space: Space, tried: Sequence[Tried]) -> optuna.Study:
        sampler = optuna.samplers.TPESampler(seed=self._seed + len(tried), n_startup_trials=4)
        finished = [t for t in tried if t.choice in space and t.state == FINISHED]
        objectives = max((len(t.values) for t in finished), default=1)
        observed = optuna.create_study(
            directions=["minimize"] * objectives,
            sampler=sampler,
            storage=optuna.storages.InMemoryStorage(),
        )
        for one in finished:
            params = space.params(one.choice)
            observed.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=distributions(space, params),
                    values=list(one.values),
                    constraints={"limits": one.violation},
                )
            )
        return observed


def _needs_fallback(tried: Sequence[Tried]) -> bool:
    """Return whether trials have ended and none is feasible, so that float32 is to be next."""
    ended = [t for t in tried if t.state != RUNNING]
    return bool(ended) and not any(t.state == FINISHED and not t.violation for t in ended)


def distributions(space: Space, params: dict[str, str]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each of the parameters."""
    values = space.parameters()
    return {name: CategoricalDistribution(values[name]) for name in params}

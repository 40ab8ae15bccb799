"""Sample the next variant to start: each dtype once, then TPE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna

from tvmopt.search.plan import FINISHED, Tried
from tvmopt.search.space import Space, Variant

_ASKS = 30


class VariantSampler:
    """Optuna's TPE over variants at the cheapest effort; repeated samples are rejected.

    It works on a copy of the trials in memory, so that its own tries leave no trace in the study.

    Args:
        seed: Seed of its random choices; each worker has its own.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, space: Space, tried: Sequence[Tried], untried: Sequence[Variant]) -> Variant:
        """Return one of ``untried``."""
        begun = {t.choice.variant.dtype for t in tried if t.choice in space}
        for variant in untried:  # those each format is begun with come first
            if variant.dtype not in begun:
                return variant
        if len(untried) == 1:
            return untried[0]
        study = self._study(space, tried)
        wanted = set(untried)
        for _ in range(_ASKS):
            trial = study.ask()
            choice = space.suggest(trial)
            if choice.variant in wanted:
                return choice.variant
        return untried[(self._seed + len(tried)) % len(untried)]

    def _study(self, space: Space, tried: Sequence[Tried]) -> optuna.Study:
        sampler = optuna.samplers.TPESampler(seed=self._seed + len(tried), n_startup_trials=4)
        finished = [t for t in tried if t.choice in space and t.state == FINISHED]
        objectives = max((len(t.values) for t in finished), default=1)
        study = optuna.create_study(
            directions=["minimize"] * objectives,
            sampler=sampler,
            storage=optuna.storages.InMemoryStorage(),
        )
        for one in finished:
            study.add_trial(self._trial(space, one))
        return study

    @staticmethod
    def _trial(space: Space, one: Tried) -> optuna.trial.FrozenTrial:
        params = space.params(one.choice)
        return optuna.trial.create_trial(
            params=params,
            distributions=distributions(space, params),
            values=list(one.values),
            constraints={"limits": one.violation},
        )


def distributions(space: Space, params: dict[str, str]) -> dict[str, Any]:
    """Return Optuna's distribution of each parameter."""
    recorded: dict[str, list[str]] = {}

    class Recorder:
        def suggest_categorical(self, name: str, choices: list[str]) -> str:
            recorded[name] = choices
            return params[name]

    space.suggest(Recorder())
    return {name: optuna.distributions.CategoricalDistribution(c) for name, c in recorded.items()}

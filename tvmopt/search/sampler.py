"""Asynchronous successive halving as an Optuna sampler: rungs of efforts, TPE within the first.

``HalvingSampler`` works in any study of Optuna whose objective calls ``space.suggest(trial)``::

    study = optuna.create_study(sampler=HalvingSampler(space, seed=0))
    study.optimize(objective)
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tvmopt.errors import ConfigError
from tvmopt.search.plan import next_choice
from tvmopt.search.records import CHOICE, SAMPLED, choice_of, record_of
from tvmopt.search.space import Choice, Space, Variant
from tvmopt.search.tried import RUNNING, Tried
from tvmopt.search.variant_sampler import VariantSampler, distributions

__all__ = ["HalvingSampler", "VariantSampler", "distributions"]


class HalvingSampler(optuna.samplers.BaseSampler):
    """Sample a whole choice by asynchronous successive halving, from the study's own trials.

    The first objective is the latency; all are minimised. No choice is repeated, unless its trial
    failed for an outside reason. The study stops when no choice is left. Threads of one process
    may share the sampler (``n_jobs``): none waits for another's trial. For several processes,
    :class:`SearchStudy` claims choices.

    Args:
        space: The search space.
        seed: Seed of its random choices; each worker has its own.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._variants = VariantSampler(seed)
        self._others = optuna.samplers.RandomSampler(seed=seed)
        self._lock = threading.Lock()

    def choose(self, tried: Sequence[Tried]) -> Choice | None:
        """Return the next choice; None when none is left, or when it depends on running trials."""
        return next_choice(self._space, tried, self._variants)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters of the space."""
        return {k: CategoricalDistribution(v) for k, v in self._space.parameters().items()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next choice, and tell other threads of it.

        Raises:
            ConfigError: When an objective is maximised.
            optuna.TrialPruned: When no choice is left; the study is stopped.
        """
        if StudyDirection.MAXIMIZE in study.directions:
            raise ConfigError("each objective must be minimised, but one is maximised")
        with self._lock:
            tried = self._tried(study, trial)
            choice = next_choice(self._space, tried, self._variants, waits=False)
            if choice is None:
                _stop(study)
                raise optuna.TrialPruned("no choice of the space is left")
            study._storage.set_trial_system_attr(trial._trial_id, SAMPLED, choice.to_dict())
        return self._space.params(choice)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample a parameter that is none of the space's at random."""
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop the study when no choice is left after this trial."""
        if CHOICE in trial.user_attrs:  # claimed by a SearchStudy, which asks before each trial
            return
        ended = copy.copy(trial)
        ended.state, ended.values = state, values
        tried = [*self._tried(study, trial), *self._tried_of([ended])]
        waits = any(t.state == RUNNING for t in tried)
        if not waits and next_choice(self._space, tried, _first) is None:
            _stop(study)

    def _tried(self, study: optuna.Study, but: FrozenTrial) -> list[Tried]:
        trials = study.get_trials(deepcopy=False)
        return self._tried_of([trial for trial in trials if trial.number != but.number])

    def _tried_of(self, trials: Sequence[FrozenTrial]) -> list[Tried]:
        chosen = ((trial, choice_of(trial, self._space)) for trial in trials)
        found = (record_of(trial, choice).tried for trial, choice in chosen if choice is not None)
        return [tried for tried in found if tried is not None]


def _first(space: Space, tried: Sequence[Tried], untried: Sequence[Variant]) -> Variant:
    return untried[0]


def _stop(study: optuna.Study) -> None:
    with suppress(RuntimeError):  # whoever asks and tells stops by himself
        study.stop()

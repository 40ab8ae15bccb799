"""The trial that a claim makes: running, with its choice, its process and its parameters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tvmopt.choices import AUTO
from tvmopt.process import Process
from tvmopt.search.records import CHOICE
from tvmopt.search.space import BASELINE, Choice, Space

#: User attribute of a trial: a name of the claim that made it, known before the trial exists.
CLAIM = "claim"
#: Name of the dimension of skip sets.
SKIPS = "skip_layers"
#: User attribute of a trial: the process that runs it.
PROCESS = "process"


def running_trial(
    study: optuna.Study, space: Space, choice: Choice, process: Process, is_opening: bool = False
) -> FrozenTrial:
    """Return a running trial of a choice, to be stored in one transaction.

    Args:
        study: The study.
        space: Its space.
        choice: The choice.
        process: The process that runs it.
        is_opening: Whether the analysis is still to come. Optuna allows no other values of a
            parameter later, so the trial has no parameter of skip sets, and the values of its
            dtype include ``auto``.
    """
    params = space.params(choice)
    more: dict[str, list[str]] = {}
    if is_opening:
        params = {name: v for name, v in params.items() if not name.startswith(f"{SKIPS}_")}
        more = {"dtype": [AUTO]}
    return create_trial(
        state=TrialState.RUNNING,
        params=params,
        distributions=_distributions(study, space, params, more),
        user_attrs={
            CHOICE: choice.to_dict(),
            PROCESS: process.to_dict(),
            CLAIM: uuid.uuid4().hex,
        },
    )


def _distributions(
    study: optuna.Study,
    space: Space,
    params: Mapping[str, str],
    more: Mapping[str, Sequence[str]],
) -> dict[str, BaseDistribution]:
    """Return the distribution of each parameter: as in the study, else with the baseline's value.

    Trial zero has parameters, too: Optuna's fANOVA knows only parameters that every finished trial
    has. A study that was begun without them keeps its distributions, which must not change. A new
    distribution holds the values of ``more``, too.
    """
    known: dict[str, BaseDistribution] = {}
    for trial in study.get_trials(deepcopy=False):
        known |= trial.distributions
    values, zero = space.parameters(), space.params(BASELINE)
    for name in params.keys() - known.keys():
        listed = [*values[name], *more.get(name, ()), *([zero[name]] if name in zero else [])]
        known[name] = CategoricalDistribution(list(dict.fromkeys(listed)))
    return {name: known[name] for name in params}

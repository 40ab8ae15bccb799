"""Trials of a study as records: choice, state, measurements and reason of a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from tvmopt.search.limits import HELDOUT_DROP, violation
from tvmopt.search.space import BASELINE, Choice, Space
from tvmopt.search.tried import FAILED, FINISHED, RUNNING, Tried

#: User attribute of a trial: its choice, written when the trial is made.
CHOICE = "choice"
#: System attribute of a trial that Optuna asked for: its choice, before its parameters are stored.
SAMPLED = "tvmopt:choice"
#: Failures unrelated to the choice, which may be tried again.
VOID = ("orphaned", "interrupted", "time_budget", "duplicate")
_STATES = {
    TrialState.COMPLETE: FINISHED, TrialState.FAIL: FAILED, TrialState.PRUNED: FAILED
}  # fmt: skip

ADJUSTED = "latency_ms_adjusted"
"""Metric: p50 at the speed that the machine had at trial zero, by ONNX Runtime's p50 in both.

Changes beyond 1.25 times are somebody else's work on the machine, which slows runtimes unequally:
they are not made up for.
"""
REFERENCE_MS = "baseline_latency_ms_p50"


@dataclasses.dataclass(frozen=True)
class Record:
    """One trial of the study.

    Attributes:
        number: Its number.
        choice: Its choice.
        state: As in :class:`~tvmopt.search.plan.Tried`.
        run_id: Its run in MLflow; empty before there is one.
        metrics: Measured metrics.
        violations: Relative violation of each limit.
        values: Values of the objectives.
        failure: Class of the failure; empty when it did not fail.
        error: What went wrong, in one line.
        stages: Runs of its stages, by name.
        seconds: Wall time it took; None while it runs.
    """

    number: int
    choice: Choice
    state: str
    run_id: str
    metrics: dict[str, float]
    violations: dict[str, float]
    values: tuple[float, ...]
    failure: str
    error: str
    stages: dict[str, str]
    seconds: float | None

    @property
    def is_void(self) -> bool:
        """Return whether the failure is unrelated to the choice."""
        return self.failure in VOID

    @property
    def is_baseline(self) -> bool:
        """Return whether it is the baseline, trial zero."""
        return self.choice == BASELINE

    @property
    def feasible(self) -> bool:
        """Return whether it finished and violates no limit."""
        return self.state == FINISHED and violation(self.violations) == 0

    @property
    def tried(self) -> Tried | None:
        """Return what the plan considers; None for the baseline and a void trial."""
        if self.is_void or self.is_baseline:
            return None
        drops = (self.violations.get(name, 0.0) for name in ("accuracy_drop", HELDOUT_DROP))
        inaccurate = any(drop > 0 for drop in drops)
        return Tried(self.choice, self.state, violation(self.violations), self.values, inaccurate)


def ended_baseline(records: Iterable[Record]) -> Record | None:
    """Return the finished baseline, or its final failure; None before."""
    found = (r for r in records if r.is_baseline and not r.is_void)
    return next((r for r in found if r.state != RUNNING), None)


def record_of(trial: FrozenTrial, choice: Choice) -> Record:
    """Return the record of one of Optuna's trials."""
    attrs = trial.user_attrs
    state = _STATES.get(trial.state, RUNNING)
    seconds = trial.duration.total_seconds() if trial.duration is not None else None
    return Record(
        number=trial.number,
        choice=choice,
        state=state,
        run_id=attrs.get("run_id", ""),
        metrics=dict(attrs.get("metrics", {})),
        violations=dict(trial.constraints),
        values=tuple(trial.values) if state == FINISHED else (),
        failure=attrs.get("failure_class", "") if state == FAILED else "",
        error=attrs.get("error", ""),
        stages=dict(attrs.get("stages", {})),
        seconds=seconds,
    )


def choice_of(trial: FrozenTrial, space: Space) -> Choice | None:
    """Return the choice of one of Optuna's trials; None when it has none yet."""
    if CHOICE in trial.user_attrs:
        return Choice.from_dict(trial.user_attrs[CHOICE])
    try:
        return space.suggest(_Given(trial.params))
    except KeyError:
        sampled = trial.system_attrs.get(SAMPLED)
        return Choice.from_dict(sampled) if sampled else None


class _Given:
    """The parameters that a trial has, as a suggester; a missing one is a KeyError."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._params = params

    def suggest_categorical(self, name: str, choices: list[str]) -> Any:
        return self._params[name]

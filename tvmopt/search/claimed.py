"""A claimed trial: the one that this process runs, until it ends it or another process takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from tvmopt.errors import TrialTakenError
from tvmopt.search.limits import violation
from tvmopt.search.patience import patient
from tvmopt.search.space import Choice


class Claimed:
    """A trial that this process runs, until one of the methods ends it.

    Each method raises :class:`TrialTakenError` when another process ended the trial, because it
    considered this process dead.
    """

    def __init__(self, study: optuna.Study, trial: Trial, choice: Choice) -> None:
        self._study, self._trial = study, trial
        self.choice = choice
        self.number = trial.number
        #: Its run in MLflow; empty before there is one.
        self.run_id = ""

    def begin(self, run_id: str) -> None:
        """Store the MLflow run of the trial."""
        self.run_id = run_id
        self.note("run_id", run_id)

    @patient
    def note(self, name: str, value: object) -> None:
        """Store an attribute of the trial."""
        with self._unless_taken():
            self._trial.set_user_attr(name, value)

    def finish(
        self,
        metrics: Mapping[str, float],
        violations: Mapping[str, float],
        values: Sequence[float],
    ) -> None:
        """Finish the trial with its measurements."""
        self.note("metrics", dict(metrics))
        self.note("violation", violation(violations))  # optuna-dashboard shows no constraints
        for name, value in violations.items():
            self._constrain(name, float(value))
        self._tell(TrialState.COMPLETE, list(values))

    def fail(self, failure: str, error: str) -> None:
        """Fail the trial with a reason."""
        self.note("failure_class", failure)
        self.note("error", error[:2000])
        self._tell(TrialState.FAIL)

    @patient
    def _constrain(self, name: str, value: float) -> None:
        with self._unless_taken():
            self._trial.set_constraint(name, value)

    @patient
    def _tell(self, state: TrialState, values: list[float] | None = None) -> None:
        with self._unless_taken():
            self._study.tell(self._trial, values, state=state)

    @contextmanager
    def _unless_taken(self) -> Iterator[None]:
        try:
            yield
        except (UpdateFinishedTrialError, ValueError) as error:  # tell raises ValueError for it
            state = self._trial.storage.get_trial(self._trial._trial_id).state
            if not state.is_finished():
                raise
            if state == TrialState.COMPLETE:  # only this process does that: an answer was lost
                return
            raise TrialTakenError(
                f"trial {self.number} was given to another worker; its result is dropped"
            ) from error

"""A study in Optuna's database: claim, finish and resume trials across processes.

Optuna's database is the only state. A trial is stored with its choice before work starts, so that
two processes never run the same choice. The trial of a dead process becomes available again.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from tvmopt.errors import ConfigError, TrialTakenError
from tvmopt.process import SILENT_S, Process, ProcessWatch
from tvmopt.search.budget import Budget, worked_seconds
from tvmopt.search.limits import violation
from tvmopt.search.patience import patient
from tvmopt.search.plan import FAILED, FINISHED, RUNNING, Tried
from tvmopt.search.sampler import distributions
from tvmopt.search.space import BASELINE, Choice, Space

#: Failures unrelated to the choice, which may be tried again.
VOID = ("orphaned", "interrupted", "time_budget", "duplicate")
_DECLARATION, _BUDGET, _ENDING = "declaration", "budget", "ending"
_SETTLED = ("space", "request")
_DECLARING_S = 5.0
_PARENT, _SESSION, _CLAIM = "parent_run", "session:", "claim"


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


@dataclasses.dataclass(frozen=True)
class Clock:
    """Clocks of a process.

    Attributes:
        wall: Seconds since the epoch; it may be set back or forth at any time.
        monotonic: Seconds that nobody can set. It stands still while the machine is suspended, so
            that a machine that sleeps spends no budget.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class SearchStudy:
    """One study in its database, as this process sees it.

    Args:
        storage: The database.
        name: Name of the study; it must exist.
        process: The process that joins it; this one by default.
        clock: The clocks of that process.
        silent_s: Seconds without a heartbeat after which a process of another machine is dead.
    """

    def __init__(
        self,
        storage: optuna.storages.RDBStorage,
        name: str,
        process: Process | None = None,
        clock: Clock = Clock(),
        silent_s: float = SILENT_S,
    ) -> None:
        self._storage = storage
        # What is tried is chosen elsewhere; this sampler fills in nothing.
        sampler = optuna.samplers.RandomSampler(seed=0)
        self._study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
        self.name = name
        self.declaration: dict[str, Any] = json.loads(self._study.user_attrs[_DECLARATION])
        self.space = Space.from_dict(self.declaration["space"])
        self._session = _SESSION + uuid.uuid4().hex[:12]
        self._process = process or Process.own()
        self._watch = ProcessWatch(self._process, clock.monotonic, silent_s)
        self._clock = clock
        self._beats = 0
        self.count_from(clock.monotonic())

    # -- what is known

    @patient
    def records(self) -> list[Record]:
        """Return all trials by number, without withdrawn duplicates."""
        found = self._study.get_trials(deepcopy=False)
        return [r for r in map(_record, found) if r.failure != "duplicate"]

    def tried(self) -> list[Tried]:
        """Return the trials that :func:`next_choice` considers: all but void ones."""
        return [
            Tried(
                r.choice,
                r.state,
                violation(r.violations),
                r.values,
                inaccurate=r.violations.get("accuracy_drop", 0.0) > 0,
            )
            for r in self.records()
            if not r.is_void and not r.is_baseline
        ]

    def baseline(self) -> Record | None:
        """Return the finished baseline, or its final failure."""
        found = (r for r in self.records() if r.is_baseline and not r.is_void)
        return next((r for r in found if r.state != RUNNING), None)

    def ended_trials(self) -> int:
        """Return the number of trials in the budget: ended, not void, without the baseline."""
        return sum(t.state != RUNNING for t in self.tried())

    def stale_trials(self) -> int:
        """Return the number of trials since the best feasible latency improved."""
        best, stale = float("inf"), 0
        for record in self.records():
            if record.is_void or record.is_baseline or record.state == RUNNING:
                continue
            stale += 1
            if record.feasible and record.values[0] < best:
                best, stale = record.values[0], 0
        return stale

    # -- sessions and time

    def count_from(self, began: float) -> None:
        """Start this session's time at ``began`` of the monotonic clock."""
        self._began = began
        self._started = self._clock.wall() - (self._clock.monotonic() - began)

    @patient
    def beat(self) -> None:
        """Write this process's heartbeat, and read the others' heartbeats.

        The end of a session is its start by the wall clock, which orders sessions, and the
        seconds since then by the monotonic clock.
        """
        self._beats += 1
        end = self._started + self._clock.monotonic() - self._began
        data = [self._started, end, self._process.to_dict(), self._beats]
        self._study.set_user_attr(self._session, data)
        for process, beats in self._sessions().items():
            self._watch.is_alive(process, beats)

    def _sessions(self) -> dict[Process, float]:
        """Return the sum of the heartbeat counters of each process of the study."""
        found: dict[Process, float] = {}
        for key, value in self._study.user_attrs.items():
            if key.startswith(_SESSION):
                process = Process.from_dict(value[2])
                # Older versions wrote no counter; what they wrote changes with each beat, too.
                found[process] = found.get(process, 0.0) + value[-1 if len(value) > 3 else 1]
        return found

    @patient
    def worked_s(self) -> float:
        """Return the seconds in which at least one process worked on the study."""
        attrs = self._study.user_attrs
        found = [tuple(v[:2]) for k, v in attrs.items() if k.startswith(_SESSION)]
        return worked_seconds(found)

    @patient
    def sweep(self) -> list[int]:
        """Release the trials of dead processes; return their numbers.

        A process of another machine is dead only after this one has watched it: call it again.
        """
        beats = self._sessions()
        given_back = []
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:
            process = Process.from_dict(trial.user_attrs["process"])
            alive = self._watch.is_alive(process, beats.get(process, 0.0))
            if not alive and self._void(trial, "orphaned", "its process died"):
                given_back.append(trial.number)
        return given_back

    def _void(self, trial: FrozenTrial, failure: str, error: str) -> bool:
        try:
            self._storage.set_trial_user_attr(trial._trial_id, "failure_class", failure)
            self._storage.set_trial_user_attr(trial._trial_id, "error", error)
            self._study.tell(trial.number, state=TrialState.FAIL)
        except (ValueError, RuntimeError):  # ended meanwhile, by its own or another process
            return False
        return True

    # -- claiming

    def claim(
        self, choose: Callable[[list[Tried]], Choice | None], budget: Budget
    ) -> Claimed | None:
        """Start a trial of the choice of ``choose``; None when it has none.

        The first trial is the baseline. A trial that another process made at the same moment with
        the same choice, or with the last of the budget, gives way by its number.
        """
        while True:
            self.sweep()
            choice = self._next(choose, budget)
            if choice is None:
                return None
            trial = self._begin(choice)
            claimed = Claimed(self._study, trial, choice)
            if not self._is_late(trial.number, choice, budget):
                return claimed
            with suppress(TrialTakenError):  # it has ended either way
                claimed.fail("duplicate", "another process made the same choice before")

    def _begin(self, choice: Choice) -> Trial:
        """Make a running trial, its choice and its process written down in the same transaction.

        ``Study.enqueue_trial`` and ``ask`` would do it in two, and SQLite lets two processes take
        the same waiting trial.
        """
        params = {} if choice == BASELINE else self.space.params(choice)
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions(self.space, params) if params else {},
            user_attrs={
                "choice": choice.to_dict(),
                "process": self._process.to_dict(),
                _CLAIM: uuid.uuid4().hex,
            },
        )
        return Trial(self._study, self._make(template))

    @patient
    def _make(self, template: FrozenTrial) -> int:
        """Return the trial's id; of the existing trial when a retry follows a lost response."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        claim = template.user_attrs[_CLAIM]
        for trial in running:
            if trial.user_attrs.get(_CLAIM) == claim:
                return trial._trial_id
        study_id = self._storage.get_study_id_from_name(self.name)
        return self._storage.create_new_trial(study_id, template)

    def _next(
        self, choose: Callable[[list[Tried]], Choice | None], budget: Budget
    ) -> Choice | None:
        zero = [r for r in self.records() if r.is_baseline and not r.is_void]
        if not zero:
            return BASELINE
        if zero[0].state == RUNNING:  # latencies are compared with it
            return None
        tried = self.tried()
        if budget.trials and len(tried) >= budget.trials:
            return None
        return choose(tried)

    def _is_late(self, number: int, choice: Choice, budget: Budget) -> bool:
        earlier = [r for r in self.records() if r.number < number and not r.is_void]
        if any(r.choice == choice for r in earlier):
            return True
        others = sum(not r.is_baseline for r in earlier)
        return bool(budget.trials) and choice != BASELINE and others >= budget.trials

    # -- what belongs to the whole study

    @property
    @patient
    def ending(self) -> dict[str, Any] | None:
        """Return the stored result of the search; None before its first end."""
        text = self._study.user_attrs.get(_ENDING)
        return json.loads(text) if text else None

    @patient
    def end(self, ending: Mapping[str, Any]) -> None:
        """Store the result of the search."""
        self._study.set_user_attr(_ENDING, json.dumps(dict(ending)))

    @property
    def budget(self) -> Budget:
        """Return the budget of the latest session."""
        return Budget(**self._study.user_attrs[_BUDGET])

    @property
    @patient
    def parent_run(self) -> str:
        """Return the parent run of the trials' runs."""
        return str(self._study.user_attrs.get(_PARENT, ""))

    @parent_run.setter
    @patient
    def parent_run(self, run_id: str) -> None:
        self._study.set_user_attr(_PARENT, run_id)


def study_names(storage: optuna.storages.RDBStorage) -> list[str]:
    """Return the names of the studies in a database."""
    return sorted(optuna.get_all_study_names(storage))


def find_study(storage: optuna.storages.RDBStorage, name: str) -> SearchStudy | None:
    """Return study ``name``; None when it does not exist, or was never completely declared."""
    if name not in study_names(storage):
        return None
    study = optuna.load_study(study_name=name, storage=storage)
    return SearchStudy(storage, name) if _DECLARATION in study.user_attrs else None


def open_study(
    storage: optuna.storages.RDBStorage,
    name: str,
    declaration: Mapping[str, Any],
    budget: Budget,
) -> SearchStudy:
    """Create study ``name``, or resume it.

    Of processes that begin it at once, one declares it. What it settled (the space, and where the
    model lies) holds for all, so that no choice is tried in two spaces.

    Args:
        storage: The database.
        name: Name of the study.
        declaration: What it is about: the space under ``"space"``, how to make the request under
            ``"request"``, ``"objectives"``, and whatever else must be the same for a study to go
            on.
        budget: What the study as a whole may spend from now on.

    Raises:
        ConfigError: When there is a study of that name about something else; says in what.
    """
    wanted = json.loads(json.dumps(dict(declaration)))
    directions = [StudyDirection.MINIMIZE] * len(declaration["objectives"])
    known = None
    try:
        study = optuna.create_study(study_name=name, storage=storage, directions=directions)
    except optuna.exceptions.DuplicatedStudyError:
        known = _declared(storage, name)
        study = optuna.load_study(study_name=name, storage=storage)
    if known is not None:
        facts = [key for key in wanted if key not in _SETTLED]
        differing = [key for key in facts if known.declaration.get(key) != wanted[key]]
        if differing:
            raise ConfigError(
                f"study {name!r} must be gone on with as it was begun, but got another "
                f"{', '.join(differing)}; give another study, or none to get one of its own"
            )
    study.set_user_attr(_BUDGET, dataclasses.asdict(budget))
    if known is None:  # last, so that whoever finds a declaration finds the rest
        study.set_user_attr(_DECLARATION, json.dumps(wanted))
    return SearchStudy(storage, name)


def _declared(storage: optuna.storages.RDBStorage, name: str) -> SearchStudy | None:
    """An existing study, once its maker has declared it; None when that died before it did."""
    end = time.monotonic() + _DECLARING_S
    while True:
        found = find_study(storage, name)
        if found is not None or time.monotonic() > end:
            return found
        time.sleep(_DECLARING_S / 50)


def _record(trial: FrozenTrial) -> Record:
    attrs = trial.user_attrs
    state = {TrialState.COMPLETE: FINISHED, TrialState.FAIL: FAILED}.get(trial.state, RUNNING)
    seconds = trial.duration.total_seconds() if trial.duration is not None else None
    return Record(
        number=trial.number,
        choice=Choice.from_dict(attrs["choice"]),
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

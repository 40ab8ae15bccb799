"""A study in Optuna's database: claim, finish and resume trials across processes.

Optuna's database is the only state. A trial is made RUNNING, with its choice and its process, in
one transaction. Optuna's own means do not suffice to share trials:

- ``enqueue_trial`` and ``ask`` are two transactions. ``ask`` selects a waiting trial FOR UPDATE,
  which SQLite does not know, and updates it: two processes can take the same trial.
- Only ``Study.optimize`` writes heartbeats. A trial whose process died before the first one never
  becomes stale, and a dead process of this machine is found only after the grace period.
- The retry callback queues such a waiting trial after the failure was stored: a process that dies
  in between loses it. And that failure counts as one, where ours is void: no budget pays for it.
"""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from tvmopt.errors import ConfigError, TrialTakenError
from tvmopt.process import SILENT_S, Process
from tvmopt.search.budget import Budget
from tvmopt.search.claimed import Claimed
from tvmopt.search.patience import patient
from tvmopt.search.records import CHOICE, VOID, Record, record_of
from tvmopt.search.sampler import HalvingSampler
from tvmopt.search.sessions import Clock, Sessions
from tvmopt.search.space import BASELINE, Choice, Space
from tvmopt.search.template import CLAIM, PROCESS, running_trial
from tvmopt.search.tried import FINISHED, RUNNING, Tried

__all__ = [
    "VOID", "Claimed", "Clock", "Record", "SearchStudy", "find_study", "open_study", "study_names",
]  # fmt: skip

_DECLARATION, _BUDGET, _ENDING, _OPENING = "declaration", "budget", "ending", "opening"
_SETTLED = ("space", "request")
_DECLARING_S = 5.0
_PARENT = "parent_run"
_Choose = Callable[[list[Tried]], Choice | None]


class SearchStudy:
    """One study in its database, as this process sees it.

    Args:
        storage: The database.
        name: Name of the study; it must exist.
        process: The process that joins it; this one by default.
        clock: The clocks of that process; the machine's by default.
        silent_s: Seconds without a heartbeat after which a process of another machine is dead.
    """

    def __init__(
        self,
        storage: optuna.storages.RDBStorage,
        name: str,
        process: Process | None = None,
        clock: Clock | None = None,
        silent_s: float = SILENT_S,
    ) -> None:
        self._storage = storage
        self._study = optuna.load_study(study_name=name, storage=storage)
        self.name = name
        self.reload()
        self._process = process or Process.own()
        self._sessions = Sessions(self._study, self._process, clock or Clock(), silent_s)
        #: As of :class:`Sessions`.
        self.count_from, self.beat = self._sessions.count_from, self._sessions.beat
        self.worked_s = self._sessions.worked_s

    @patient
    def reload(self) -> None:
        """Read the declaration and the space, which another process may have settled meanwhile."""
        self.declaration: dict[str, Any] = json.loads(self._study.user_attrs[_DECLARATION])
        self.space = Space.from_dict(self.declaration["space"])
        self.sample_with(0)

    @property
    @patient
    def is_opening(self) -> bool:
        """Whether the first trial comes before the skip sets of the space are found."""
        return bool(self._study.user_attrs.get(_OPENING, False))

    @patient
    def settle(self, space: Space, request: Mapping[str, Any]) -> None:
        """Store the space with its skip sets, and how to make the request; the opening ends."""
        settled = {**self.declaration, "space": space.to_dict(), "request": dict(request)}
        self._study.set_user_attr(_DECLARATION, json.dumps(settled))
        self._study.set_user_attr(_OPENING, False)
        self.reload()

    def sample_with(self, seed: int) -> HalvingSampler:
        """Give Optuna's study a sampler with this process's seed, and return it."""
        self._study.sampler = sampler = HalvingSampler(self.space, seed)
        return sampler

    # -- what is known

    @patient
    def records(self) -> list[Record]:
        """Return all trials by number, without withdrawn duplicates."""
        found = self._study.get_trials(deepcopy=False)
        records = (record_of(t, Choice.from_dict(t.user_attrs[CHOICE])) for t in found)
        return [record for record in records if record.failure != "duplicate"]

    def tried(self) -> list[Tried]:
        """Return the trials that the plan considers: all but void ones and the baseline."""
        return [record.tried for record in self.records() if record.tried is not None]

    def ended_trials(self) -> int:
        """Return the number of trials in the budget: ended, not void, without the baseline."""
        return sum(t.state != RUNNING for t in self.tried())

    def stale_trials(self) -> int:
        """Return the number of trials since the best feasible latency improved."""
        best, stale = float("inf"), 0
        for tried in self.tried():
            if tried.state == RUNNING:
                continue
            stale += 1
            if tried.state == FINISHED and tried.rank < (0.0, best):
                best, stale = tried.values[0], 0
        return stale

    # -- trials of dead processes

    @patient
    def sweep(self) -> list[int]:
        """Release the trials of dead processes; return their numbers.

        A process of another machine is dead only after this one has watched it: call it again.
        """
        beats = self._sessions.heartbeats()
        given_back = []
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            process = Process.from_dict(trial.user_attrs[PROCESS])
            alive = self._sessions.is_alive(process, beats.get(process, 0.0))
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

    @patient
    def is_worked_on(self) -> bool:
        """Return whether a process that has written a heartbeat is alive."""
        beats = self._sessions.heartbeats()
        return any(self._sessions.is_alive(process, count) for process, count in beats.items())

    # -- claiming

    def claim(self, choose: _Choose, budget: Budget) -> Claimed | None:
        """Start a trial of the choice of ``choose``; None when it has none.

        The first trial is the baseline. A trial that another process made at the same moment with
        the same choice, or with the last of the budget, gives way by its number.
        """
        while True:
            self.sweep()
            choice = self._next(choose, budget)
            if choice is None:
                return None
            template = patient(running_trial)(
                self._study, self.space, choice, self._process, self.is_opening
            )
            claimed = Claimed(self._study, Trial(self._study, self._make(template)), choice)
            if not self._is_late(claimed.number, choice, budget):
                return claimed
            with suppress(TrialTakenError):  # it has ended either way
                claimed.fail("duplicate", "another process made the same choice before")

    @patient
    def _make(self, template: FrozenTrial) -> int:
        """Return the trial's id; of the existing trial when a retry follows a lost response."""
        claim = template.user_attrs[CLAIM]
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get(CLAIM) == claim:
                return trial._trial_id
        study_id = self._storage.get_study_id_from_name(self.name)
        return self._storage.create_new_trial(study_id, template)

    def _next(self, choose: _Choose, budget: Budget) -> Choice | None:
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
    is_opening: bool = False,
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
        is_opening: Whether a new study has a first trial before the skip sets of its space.

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
                f"{', '.join(differing)}; give another study, or none to begin a new one"
            )
    study.set_user_attr(_BUDGET, dataclasses.asdict(budget))
    if known is None:
        _name_objectives(study, declaration["objectives"])
        study.set_user_attr(_OPENING, is_opening)
        # last, so that whoever finds a declaration finds the rest
        study.set_user_attr(_DECLARATION, json.dumps(wanted))
    return SearchStudy(storage, name)


def _name_objectives(study: optuna.Study, names: Sequence[str]) -> None:
    """Name the objectives for Optuna's plots and its dashboard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(names))


def _declared(storage: optuna.storages.RDBStorage, name: str) -> SearchStudy | None:
    """An existing study, once its maker has declared it; None when that died before it did."""
    end = time.monotonic() + _DECLARING_S
    while True:
        found = find_study(storage, name)
        if found is not None or time.monotonic() > end:
            return found
        time.sleep(_DECLARING_S / 50)

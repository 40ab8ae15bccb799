"""Entry points ``search`` and ``worker``."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from tvmopt import command_start
from tvmopt.digest import canonical_json, sha256_text
from tvmopt.errors import ConfigError, NothingFeasibleError
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import SearchCommand, WorkerCommand
from tvmopt.parameters.declare import words
from tvmopt.search.budget import Budget
from tvmopt.search.declared import Declared, read_declared
from tvmopt.search.dimensions import KEYS
from tvmopt.search.limits import Limits
from tvmopt.search.shares import ENDING
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage, storage_url
from tvmopt.search.study import find_study, open_study, study_names
from tvmopt.search.urls import masked_url
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.pipeline.dry_run import mark, say_parameters, say_steps
from tvmopt.tracking.pipeline.entry import checked_request, open_session, resolved
from tvmopt.tracking.pipeline.request import Asked, Request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.report.sentences import EXHAUSTED
from tvmopt.tracking.search.analysis import (
    analysis_request,
    dtypes_of,
    to_analyse,
    unanalysed_space,
    with_analysis,
)
from tvmopt.tracking.search.device_rules import check_has_gpu, check_searchable
from tvmopt.tracking.search.ending import Ending, finish_search
from tvmopt.tracking.search.facts import (
    calibrated_as,
    check_same,
    facts_of,
    portable,
    with_limits_of,
)
from tvmopt.tracking.search.history import TrialHistory
from tvmopt.tracking.search.loop import SearchWork, heartbeat, work
from tvmopt.tracking.search.opening import (
    begins_with_trial,
    first_choice,
    wait_for_space,
    work_from_opening,
)
from tvmopt.tracking.search.report import leave_report
from tvmopt.tracking.search.trial import mend_runs
from tvmopt.tracking.store.allowance import stage_allowance
from tvmopt.tracking.store.command import looking
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.exclusive import alone
from tvmopt.tracking.store.missing import is_missing
from tvmopt.tracking.store.mlflow_store import tracking_uri
from tvmopt.tracking.store.runs import log_tags
from tvmopt.tracking.store.stage_run import Session

_SQLITE = "sqlite:///"


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Result of :func:`search`.

    Attributes:
        run_id: The command's run.
        study: Name of the study.
        ending: What it came to.
        table: The trials as text.
    """

    run_id: str
    study: str
    ending: Ending
    table: str


@dataclasses.dataclass(frozen=True)
class _Question:
    """Checked request of a search.

    Attributes:
        request: The model and what is the same in all trials.
        limits: Hard constraints.
        objectives: What is to be small.
        budget: Limits of the study as a whole.
        declared: Restrictions of the space.
        allowance: What stages before and after the trials may use.
    """

    request: Request
    limits: Limits
    objectives: tuple[str, ...]
    budget: Budget
    declared: Declared
    allowance: Allowance

    @classmethod
    def of(cls, command: SearchCommand) -> _Question:
        """Check the parameters of a search."""
        accuracy, asked = command.accuracy, command.search_limits
        limits = Limits(
            accuracy.max_accuracy_drop, asked.max_library_mb, asked.max_memory_mb, asked.max_p99_ms
        )
        budget = Budget(command.budget.trials, command.budget.time_budget, command.budget.patience)
        if not budget.trials and not budget.time_s and not budget.patience:
            raise ConfigError(
                "one of trials, time_budget and patience must be above 0, all are 0"
                "; set one of them"
            )
        space, trial = command.space, command.trial_limits
        given = {key: value for key, value in space.values().items() if key in KEYS}
        declared = read_declared(space.space, **given)
        allowance = stage_allowance(trial.memory_limit, trial.trial_timeout, budget.time_s)
        check_has_gpu(command.model.target)
        request = checked_request(Asked.by(command), allowance)
        check_searchable(request, command.model.target, declared)
        return cls(request, limits, words(asked.objectives), budget, declared, allowance)

    def facts(self) -> dict[str, Any]:
        """Return the facts that must be equal for a study to go on."""
        return facts_of(self.request, self.limits, self.objectives, self.declared)

    def study_name(self, asked: str) -> str:
        """Return the name of the study; by default one for the same question."""
        return asked or f"{self.request.name}-{sha256_text(canonical_json(self.facts()))[:10]}"


def _dry_run(command: SearchCommand) -> None:
    """Print the question of a search, and what its study knows already."""
    asked = _Question.of(command)
    url = storage_url(command.study.storage, _default_storage())
    name = asked.study_name(command.study.study)
    shown = {**command.values(), "study": name, "storage": masked_url(url)}
    say_parameters("search", resolved(shown, asked.request))
    known = find_study(open_storage(url), name)
    say()
    with looking(asked.request.name) as session:
        mark(session.client, session.run_id, "search")
        if known is not None:
            say(f"study {name} would go on: {known.ended_trials()} trials done")
            say(f"space {known.space.describe()}")
            return
        say(f"study {name} would begin")
        analysed = _analysed(asked.request, asked.declared, asked.budget)
        if analysed is not None:
            say_steps(StagePipeline(session, analysed).plan("sensitivity"))


@entry_point(SearchCommand, dry_run=_dry_run)
def search(command: SearchCommand) -> SearchResult:
    """Find the fastest feasible artifact of a model; resumes an earlier search.

    Without a model, the bundled example is used.

    Raises:
        TvmoptError: One line that says what to do; :class:`NothingFeasibleError` when no artifact
            keeps to the limits.
    """
    began = command_start.began()
    asked = _Question.of(command)
    request, budget, facts = asked.request, asked.budget, asked.facts()
    name = asked.study_name(command.study.study)
    url = storage_url(command.study.storage, _default_storage())
    database = open_storage(url)
    shown = {**command.values(), "study": name, "storage": masked_url(url)}
    with open_session("search", request, shown, allowance=asked.allowance) as session:
        # Of searches that begin a study at once, one makes the space.
        with alone(f"the beginning of {name}", say):
            known = find_study(database, name)
            is_opening = False
            if known is None:
                say(f"study      {name} (new)")
                made, request, is_opening = _begin(session, asked)
            else:
                say(f"study      {name} (gone on with: {known.ended_trials()} trials done)")
                made, request = known.space, calibrated_as(request, known.declaration)
            settled = {"space": made.to_dict(), "request": portable(request)}
            study = open_study(database, name, {**facts, **settled}, budget, is_opening)
        study.count_from(began)
        if not study.is_opening:
            say(f"space      {study.space.describe()}")
        limit = command.trial_limits
        reserve_s = ENDING.seconds(budget.time_s) if budget.time_s else 0.0
        job = SearchWork(
            session, request, study, budget, reserve_s, asked.limits, asked.objectives,
            limit.trial_timeout, limit.memory_limit, command.study.seed, session.run_id,
        )  # fmt: skip
        return _search(job, asked.declared)


@entry_point(WorkerCommand)
def worker(command: WorkerCommand) -> str:
    """Join a study of ``search`` and run trials; return why it ended.

    Raises:
        ConfigError: When there is no such study, or its model is not on this machine.
    """
    join, limit = command.join, command.trial_limits
    url = storage_url(join.storage, _default_storage())
    database = open_storage(url)
    study = find_study(database, join.study)
    if study is None:
        known = ", ".join(study_names(database)) or "none"
        raise ConfigError(
            f"study must be one that a search has begun in this storage ({known}), but got "
            f"{join.study!r}; begin it with -e search -P study={join.study}"
        )
    wait_for_space(study)
    declared = study.declaration
    own = {"model": join.model, "data": join.data}
    params = {**declared["request"], **{role: path for role, path in own.items() if path}}
    for role in own:
        path = params[role]
        if path and ":/" not in path and not Path(path).is_file():
            raise ConfigError(
                f"{role} of study {join.study!r} must be on this machine, but there is no file "
                f"'{path}'; give {role}=PATH"
            )
    allowance = stage_allowance(limit.memory_limit, limit.trial_timeout)
    request = checked_request(Asked.of(params), allowance)
    check_same(declared, request, join.study)
    shown = {**params, **command.values(), "storage": masked_url(url)}
    with open_session("worker", request, shown, allowance=allowance) as session:
        seed = join.seed or int(sha256_text(f"{platform.node()} {os.getpid()}")[:6], 16)
        job = SearchWork(
            session,
            request,
            study,
            study.budget,
            0.0,
            Limits(**declared["limits"]),
            tuple(declared["objectives"]),
            limit.trial_timeout,
            limit.memory_limit,
            seed,
            study.parent_run or session.run_id,
        )
        stopped = work(job)
        say(f"done       {stopped}")
        log_tags(session.client, session.run_id, {"mlflow.note.content": f"ended: {stopped}"})
        return stopped


def _search(job: SearchWork, declared: Declared) -> SearchResult:
    session, study = job.session, job.study
    history = TrialHistory(session.client, session.run_id)
    job = dataclasses.replace(job, on_trial=lambda: history.log(study.records()))
    before = study.ending
    study.sweep()
    ending = Ending.from_dict(before) if before is not None and _stands(job) else None
    if ending is not None and _nothing_left(job, ending):
        say("reused     the study had ended: nothing is left to try within this budget")
        log_tags(session.client, session.run_id, {"tvmopt.search_run": study.parent_run})
    else:
        study.parent_run = session.run_id
        mend_runs(session.client, study.records(), session.run_id)
        stopped = work_from_opening(job, declared)
        # Two searches of one study that end at once must not both register what it found.
        with heartbeat(study), alone(f"the end of {study.name}", say):
            mend_runs(session.client, study.records(), session.run_id)
            ending = finish_search(session, job.request, study, job.limits, stopped)
        study.end(ending.to_dict())  # it stands when this run has ended, too
    history.log(study.records(), all_ended=True)
    text = leave_report(session, job.request.name, study, ending)
    if not ending.feasible:
        raise NothingFeasibleError(
            f"no artifact of the search keeps to its limits: {ending.why[0]}; raise the limit, or "
            "give it more trials or time"
        )
    return SearchResult(session.run_id, study.name, ending, text)


def _stands(job: SearchWork) -> bool:
    """Whether the run that the trials belong to came to its end: it may have been killed there."""
    try:
        run = job.session.client.get_run(job.study.parent_run)
    except MlflowException as error:
        if not is_missing(error):
            raise
        return False  # deleted by somebody
    return run.info.status in ("FINISHED", "FAILED")


def _nothing_left(job: SearchWork, ending: Ending) -> bool:
    study, budget = job.study, job.budget
    if ending.ended_trials != study.ended_trials():
        return False
    if budget.trials and study.ended_trials() >= budget.trials:
        return True
    if budget.patience and study.stale_trials() >= budget.patience:
        return True
    if budget.time_s and study.worked_s() + job.reserve_s >= budget.time_s:
        return True
    return ending.stopped == EXHAUSTED


def _analysed(request: Request, declared: Declared, budget: Budget) -> Request | None:
    """Return the request whose sensitivity the space needs; None when it needs none."""
    dtypes = to_analyse(dtypes_of(request, declared), declared)
    return analysis_request(request, dtypes, budget) if dtypes else None


def _begin(session: Session, asked: _Question) -> tuple[Space, Request, bool]:
    """Return the space of a new study, its request, and whether a trial precedes the analysis."""
    request, declared, budget = asked.request, asked.declared, asked.budget
    space = unanalysed_space(session, request, declared)
    dtypes = to_analyse(space.dtypes, declared)
    if begins_with_trial(space, dtypes):
        said = f"{first_choice(space)}, then the analysis of {', '.join(dtypes)}"
        say(f"opening    {said}")
        return space, request, True
    if dtypes:
        analysed = analysis_request(request, dtypes, budget)
        space = with_analysis(session, analysed, space, dtypes, asked.allowance)
        request = with_limits_of(request, analysed)
    return space, request, False


def _default_storage() -> str:
    """Return the default study database, next to the tracking store."""
    uri = tracking_uri()
    folder = Path(uri.removeprefix(_SQLITE)).parent if uri.startswith(_SQLITE + "/") else Path.cwd()
    return f"{_SQLITE}{folder / 'tvmopt-studies.db'}"

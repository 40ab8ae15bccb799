"""Entry points ``search`` and ``worker``."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from pathlib import Path

from mlflow.exceptions import MlflowException

from tvmopt.digest import canonical_json, sha256_text
from tvmopt.errors import ConfigError, NothingFeasibleError
from tvmopt.search.budget import Budget
from tvmopt.search.generate import Declared, choose_dtypes, generate_space, read_declared
from tvmopt.search.limits import Limits
from tvmopt.search.space import FLOAT, Space
from tvmopt.search.storage import open_storage, storage_url
from tvmopt.search.study import find_study, open_study, study_names
from tvmopt.search.urls import masked_url
from tvmopt.stages.sensitivity import read_sensitivity
from tvmopt.tracking import pipeline
from tvmopt.tracking.console import say
from tvmopt.tracking.entry import checked_request, open_session, with_example
from tvmopt.tracking.exclusive import alone
from tvmopt.tracking.in_child import model_layers
from tvmopt.tracking.report.history import TrialHistory
from tvmopt.tracking.report.search import leave_report
from tvmopt.tracking.report.sentences import EXHAUSTED
from tvmopt.tracking.request import Request
from tvmopt.tracking.runs import log_tags
from tvmopt.tracking.search_end import Ending, finish_search
from tvmopt.tracking.search_facts import check_same, facts_of, portable, request_params
from tvmopt.tracking.search_loop import SearchWork, heartbeat, work
from tvmopt.tracking.stage_run import Session
from tvmopt.tracking.store import tracking_uri
from tvmopt.tracking.trial import OBJECTIVES, mend_runs

_SQLITE = "sqlite:///"
_RESERVE_SHARE, _MOST_RESERVE_S = 0.1, 90.0
_CONVOLUTIONS = ("Conv", "ConvTranspose")


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


def search(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    dtypes: str = "",
    layouts: str = "",
    strategies: str = "",
    granularities: str = "",
    topk: int = 20,
    space: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    sensitivity_time: float = 120.0,
    max_accuracy_drop: float = 0.01,
    max_library_mb: float = 0.0,
    max_memory_mb: float = 0.0,
    max_p99_ms: float = 0.0,
    objectives: str = "latency",
    trials: int = 24,
    time_budget: float = 1800.0,
    patience: int = 0,
    trial_timeout: float = 1200.0,
    memory_limit: float = 0.0,
    metric: str = "auto",
    repeats: int = 200,
    study: str = "",
    storage: str = "",
    seed: int = 0,
) -> SearchResult:
    """Find the fastest feasible artifact of a model; resumes an earlier search.

    Without a model, the bundled example is used. Parameters are as in MLproject.

    Raises:
        TvmoptError: One line that says what to do; :class:`NothingFeasibleError` when no artifact
            keeps to the limits.
    """
    given, began = dict(locals()), time.monotonic()
    params = with_example(given)
    limits = Limits(max_accuracy_drop, max_library_mb, max_memory_mb, max_p99_ms)
    budget = Budget(trials, time_budget, patience)
    aims = _objectives(objectives)
    if not budget.trials and not budget.time_s and not budget.patience:
        raise ConfigError("one of trials, time_budget and patience must be above 0, all are 0")
    declared = read_declared(space, dtypes, layouts, strategies, granularities, topk)
    request = checked_request(request_params(params))
    if lacking := request.target.why_not_here():
        raise ConfigError(f"search measures on its target, but {lacking}; use target=host")
    if request.target.gpu is not None:
        raise ConfigError(
            f"search is for CPUs so far, but got target={target!r}, a GPU; use -e main with "
            "dtype=float16 or dtype=float32, and compare"
        )
    facts = facts_of(request, limits, aims, declared)
    study_name = study or f"{request.name}-{sha256_text(canonical_json(facts))[:10]}"
    url = storage_url(storage, _default_storage())
    database = open_storage(url)
    shown = {**params, "study": study_name, "storage": masked_url(url)}
    with open_session("search", request, shown) as session:
        # Of searches that begin a study at once, one makes the space.
        with alone(f"the beginning of {study_name}", say):
            known = find_study(database, study_name)
            if known is None:
                say(f"study      {study_name} (new)")
                made = _space(session, request, declared)
            else:
                say(f"study      {study_name} (gone on with: {known.ended_trials()} trials done)")
                made = known.space
            settled = {"space": made.to_dict(), "request": portable(params, request)}
            it = open_study(database, study_name, {**facts, **settled}, budget)
        it.count_from(began)
        say(f"space      {_space_words(it.space)}")
        reserve = min(_MOST_RESERVE_S, _RESERVE_SHARE * budget.time_s)
        job = SearchWork(
            session, request, it, budget, reserve, limits, aims, trial_timeout, memory_limit,
            seed, session.run_id,
        )  # fmt: skip
        return _search(job)


def worker(
    study: str,
    storage: str = "",
    model: str = "",
    data: str = "",
    trial_timeout: float = 1200.0,
    memory_limit: float = 0.0,
    seed: int = 0,
) -> str:
    """Join a study of ``search`` and run trials; return why it ended.

    Raises:
        ConfigError: When there is no such study, or its model is not on this machine.
    """
    url = storage_url(storage, _default_storage())
    database = open_storage(url)
    it = find_study(database, study)
    if it is None:
        known = ", ".join(study_names(database)) or "none"
        raise ConfigError(
            f"study must be one that a search has begun in this storage ({known}), but got "
            f"{study!r}; begin it with -e search -P study={study}"
        )
    declared = it.declaration
    params = {**declared["request"], **{k: v for k, v in (("model", model), ("data", data)) if v}}
    for role in ("model", "data"):
        path = params[role]
        if path and ":/" not in path and not Path(path).is_file():
            raise ConfigError(
                f"{role} of study {study!r} must be on this machine, but there is no file "
                f"'{path}'; give {role}=PATH"
            )
    request = checked_request(params)
    check_same(declared, request, study)
    shown = {**params, "study": study, "storage": masked_url(url)}
    with open_session("worker", request, shown) as session:
        own = seed or int(sha256_text(f"{platform.node()} {os.getpid()}")[:6], 16)
        job = SearchWork(
            session,
            request,
            it,
            it.budget,
            0.0,
            Limits(**declared["limits"]),
            tuple(declared["objectives"]),
            trial_timeout,
            memory_limit,
            own,
            it.parent_run or session.run_id,
        )
        stopped = work(job)
        say(f"done       {stopped}")
        log_tags(session.client, session.run_id, {"mlflow.note.content": f"ended: {stopped}"})
        return stopped


def _search(job: SearchWork) -> SearchResult:
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
        stopped = work(job)
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
    except MlflowException:  # deleted by somebody
        return False
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


def _objectives(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    if not found or found[0] != "latency" or not set(found) <= set(OBJECTIVES):
        raise ConfigError(
            f"objectives must be latency, and after it any of {', '.join(OBJECTIVES[1:])}, but got "
            f"{text!r}"
        )
    return found


def _space(session: Session, request: Request, declared: Declared) -> Space:
    dtypes = choose_dtypes(declared, request.target.cpu_flags, request.quantised)
    unknown = tuple(d for d in dtypes if d != FLOAT and d not in declared.skip_layers)
    found = None
    if unknown:
        looked_at = dataclasses.replace(request.sensitivity, dtypes=unknown)
        asked = dataclasses.replace(request, sensitivity=looked_at)
        session = dataclasses.replace(session, takes_turns=True)
        found = read_sensitivity(pipeline.sensitivity_stage(session, asked).folder)
    layers = model_layers(request.model, request.convert.input_shapes, session.allow())
    convolutions = sum(layer.op in _CONVOLUTIONS for layer in layers)
    return generate_space(declared, dtypes, convolutions, found)


def _space_words(space: Space) -> str:
    formats = [
        dtype if dtype == FLOAT else f"{dtype} ({len(space.skips_of(dtype))} skip sets)"
        for dtype in space.dtypes
    ]
    efforts = " -> ".join(str(effort) for effort in space.efforts)
    return f"{', '.join(formats)} x {', '.join(space.layouts)} x {efforts}: {len(space)} choices"


def _default_storage() -> str:
    """Return the default study database, next to the tracking store."""
    uri = tracking_uri()
    folder = Path(uri.removeprefix(_SQLITE)).parent if uri.startswith(_SQLITE + "/") else Path.cwd()
    return f"{_SQLITE}{folder / 'tvmopt-studies.db'}"

"""Run trials of a study until the budget is spent or no choice is left."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tvmopt.errors import LimitError, StudyAwayError
from tvmopt.search.budget import Budget
from tvmopt.search.claimed import Claimed
from tvmopt.search.limits import Limits
from tvmopt.search.records import REFERENCE_MS, ended_baseline
from tvmopt.search.space import BASELINE, Choice
from tvmopt.search.study import SearchStudy
from tvmopt.search.tried import RUNNING, Tried
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.report.sentences import (
    EXHAUSTED,
    NO_BETTER,
    SPENT_TIME,
    SPENT_TRIALS,
    STOPPED_TRIAL,
)
from tvmopt.tracking.search.trial import Rules, run_trial
from tvmopt.tracking.store.allowance import Stopwatch, TrialLimits
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.stage_run import Session

_BEAT_S = 2.0
_POLL_S = 1.0


@dataclasses.dataclass(frozen=True)
class SearchWork:
    """Context of one process that works on a study.

    Attributes:
        session: Of its command.
        request: The model and what is the same in all trials.
        study: The study.
        budget: Limits of the whole study.
        reserve_s: Seconds of the budget that trials leave for the end.
        limits: Hard constraints.
        objectives: What is to be small.
        trial_timeout_s: Most seconds for one stage of a trial.
        memory_limit_mb: Most memory for one stage of a trial; 0 for 80% of the machine's.
        seed: Seed of this process's sampler.
        parent: Run that the trials' runs belong to.
        on_trial: Called after each trial of this process.
        choose: Chooses the next trial from what was tried; None for the study's sampler.
    """

    session: Session
    request: Request
    study: SearchStudy
    budget: Budget
    reserve_s: float
    limits: Limits
    objectives: tuple[str, ...]
    trial_timeout_s: float
    memory_limit_mb: float
    seed: int
    parent: str
    on_trial: Callable[[], None] = lambda: None
    choose: Callable[[Sequence[Tried]], Choice | None] | None = None

    @property
    def trials_s(self) -> float:
        """Seconds of the budget that trials may use; 0 for no limit."""
        return max(0.0, self.budget.time_s - self.reserve_s) if self.budget.time_s else 0.0

    def rules(self) -> Rules:
        """Return the rules for judging trials, given the baseline.

        ONNX Runtime runs on the CPU, so it says nothing about the speed of a GPU.
        """
        records = self.study.records()
        zero = ended_baseline(records)
        on_gpu = self.request.target.gpu is not None
        known = zero.metrics.get(REFERENCE_MS) if zero and not on_gpu else None
        return Rules(self.limits, self.objectives, known, records)


def work(it: SearchWork) -> str:
    """Run trials until none is left; return why."""
    study, budget = it.study, it.budget
    choose, time_s = it.choose or study.sample_with(it.seed).choose, it.trials_s
    if budget.time_s and not time_s:
        return SPENT_TIME.format(budget.time_s)
    with heartbeat(study):
        while True:
            watch = Stopwatch(time_s, study.worked_s())
            if watch.left() <= 0:
                return SPENT_TIME.format(budget.time_s)
            if budget.patience and study.stale_trials() >= budget.patience:
                return NO_BETTER.format(budget.patience)
            claimed = study.claim(choose, budget)
            if claimed is None:
                if any(t.state == RUNNING for t in study.records()):
                    time.sleep(_POLL_S)
                    continue
                if budget.trials and study.ended_trials() >= budget.trials:
                    return SPENT_TRIALS.format(budget.trials)
                return EXHAUSTED
            is_baseline = claimed.choice == BASELINE
            limits = TrialLimits(
                it.trial_timeout_s, it.memory_limit_mb, watch.left, budget.time_s, is_baseline
            )
            start = time.perf_counter()
            try:
                words = run_trial(it.session, it.request, claimed, it.rules(), limits, it.parent)
            except LimitError:
                _say_trial(claimed, start, STOPPED_TRIAL)
                return SPENT_TIME.format(budget.time_s)
            _say_trial(claimed, start, words)
            it.on_trial()


def _say_trial(claimed: Claimed, start: float, words: str) -> None:
    title = "baseline: untuned TVM" if claimed.choice == BASELINE else str(claimed.choice)
    say(f"trial {claimed.number:<4} {time.perf_counter() - start:6.1f} s {title}: {words}")


@contextmanager
def heartbeat(study: SearchStudy) -> Iterator[None]:
    """Write this process's heartbeat to the study, and count its time."""
    end = threading.Event()

    def beat() -> None:
        while not end.wait(_BEAT_S):
            with suppress(StudyAwayError):  # the next beat says it all, or work ends with an error
                study.beat()

    study.beat()
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        with suppress(StudyAwayError):  # its last seconds are not counted
            study.beat()

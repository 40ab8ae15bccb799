"""Run one trial of a search: convert, tune, build, evaluate; store the result in the study."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import suppress

from mlflow import MlflowClient

from tvmopt.choices import MEASURING
from tvmopt.errors import (
    EnvironmentSetupError,
    LimitError,
    StudyAwayError,
    TrialTakenError,
    TvmoptError,
)
from tvmopt.search import shares
from tvmopt.search.claimed import Claimed
from tvmopt.search.limits import Limits, violation
from tvmopt.search.records import ADJUSTED, REFERENCE_MS, Record
from tvmopt.search.space import BASELINE, Choice
from tvmopt.search.tried import FINISHED
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.pipeline.untuned import check_can_end
from tvmopt.tracking.report.sentences import trial_words
from tvmopt.tracking.search.leader import leads, measure_heldout_drop
from tvmopt.tracking.search.tuning_seconds import tuning_seconds
from tvmopt.tracking.store.allowance import BUDGET_SPENT, TrialLimits
from tvmopt.tracking.store.earlier import earlier_databases
from tvmopt.tracking.store.runs import log_metrics, log_tags, open_run
from tvmopt.tracking.store.stage_run import Session, StageOutput
from tvmopt.tracking.store.trust import drop_private

# Logged first, because the compare view of the UI opens with what comes first.
_FIRST = ("latency_ms_p50", "accuracy_drop", "speedup_vs_baseline")
# Of every trial but the baseline: most seconds for the latency of the candidate, and of ONNX
# Runtime. Finals measure the best again.
_TRIAL_LATENCY_S = 3.0
_MOST_ADJUSTED = 1.25


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules for judging all trials of a study.

    Attributes:
        limits: Hard constraints.
        objectives: What is to be small; some of ``OBJECTIVES``, the latency first.
        reference_ms: ONNX Runtime's p50 at trial zero; None before, and on a GPU.
        records: Trials so far.
    """

    limits: Limits
    objectives: tuple[str, ...]
    reference_ms: float | None
    records: Sequence[Record] = ()

    def adjusted_ms(self, metrics: dict[str, float]) -> float:
        """Return the latency, scaled to the CPU's speed during trial zero, if that is known."""
        speed = (self.reference_ms or metrics[REFERENCE_MS]) / metrics[REFERENCE_MS]
        return metrics["latency_ms_p50"] * min(_MOST_ADJUSTED, max(1 / _MOST_ADJUSTED, speed))

    def values(self, metrics: dict[str, float]) -> list[float]:
        """Return the values of the objectives."""
        of = {**metrics, "latency": self.adjusted_ms(metrics)}
        return [of[name] for name in self.objectives]


def request_for(request: Request, choice: Choice, budget_s: float = 0.0) -> Request:
    """Return the request for one choice of a search.

    Untuned TVM may be a hundred times as slow as what the search is about: its measurements get a
    share of the budget, at least three calls, and golden inputs alone check it. The accuracy of
    another trial has a share, too. The cold start of ONNX Runtime is measured in trial zero and in
    the last round.

    Args:
        request: Of the search.
        choice: The choice.
        budget_s: Seconds of the study's budget; 0 for no limit.
    """
    # torch.compile takes minutes: the last round alone compares with it
    found = dataclasses.replace(request.changed(**choice.settings()), torch_source=None)
    if choice != BASELINE:
        most_s = shares.TRIAL_ACCURACY.seconds(budget_s) if budget_s else request.accuracy_time_s
        return dataclasses.replace(
            found,
            latency_time_s=_TRIAL_LATENCY_S,
            accuracy_time_s=most_s,
            starts_reference=False,
        )
    most = shares.BASELINE_MEASUREMENT.seconds(budget_s)
    return dataclasses.replace(
        found, accuracy_time_s=most, latency_time_s=most, is_only_compared=True
    )


def run_trial(
    session: Session,
    request: Request,
    claimed: Claimed,
    rules: Rules,
    trial_limits: TrialLimits,
    parent: str,
) -> str:
    """Run a claimed trial; return its outcome in one sentence.

    When another process took the trial meanwhile, its run is KILLED and its result is dropped.

    Args:
        session: Of the search.
        request: Of the search.
        claimed: The trial.
        rules: How it is judged.
        trial_limits: What it may use.
        parent: Run that its run is a child of.

    Raises:
        LimitError: The budget was spent; the trial is given back.
        StudyAwayError, EnvironmentSetupError: The disk is full, or the database is away; the trial
            is given back.
    """
    try:
        return _run(session, request, claimed, rules, trial_limits, parent)
    except TrialTakenError as error:
        if claimed.run_id:
            tags = {"tvmopt.failure_class": error.failure_class, "tvmopt.error": str(error)}
            log_tags(session.client, claimed.run_id, tags)
            session.client.set_terminated(claimed.run_id, "KILLED")
        return f"DROPPED: {error}"


def _run(
    session: Session,
    request: Request,
    claimed: Claimed,
    rules: Rules,
    trial_limits: TrialLimits,
    parent: str,
) -> str:
    choice = claimed.choice
    tags = {
        "tvmopt.trial": str(claimed.number),
        "tvmopt.study": str(session.params.get("study", "")),
        "tvmopt.model_name": request.name,
        "tvmopt.granularity": choice.effort.granularity,
    }
    name = "baseline" if choice == BASELINE else f"trial-{claimed.number:03d}"
    params = {**session.params, **choice.params()}
    try:
        with open_run(
            session.client, session.experiment, name, params, tags, parent=parent
        ) as run_id:
            claimed.begin(run_id)
            within = dataclasses.replace(
                session, run_id=run_id, params=params, allow=trial_limits.allow, quiet=True,
                takes_turns=True,
            )  # fmt: skip
            start = time.perf_counter()
            try:
                if choice == BASELINE and trial_limits.budget_s:
                    allowed, budget_s = trial_limits.allow(), trial_limits.budget_s
                    check_can_end(request, shares.BASELINE, budget_s, allowed, "search")
                stages = _stages(within, request_for(request, choice, trial_limits.budget_s))
                took = time.perf_counter() - start
                spent = {"trial_s": took, "tracking_s": took - sum(s.busy_s for s in stages)}
                return _judge(within, request, claimed, rules, stages, spent)
            except LimitError as error:
                raise trial_limits.explain(error) from error
            finally:  # large, and no other trial reads them
                drop_private(session.work_dir, "build", "evaluate")
    except TrialTakenError:
        raise
    except (StudyAwayError, EnvironmentSetupError) as error:
        # Nothing about this choice: it is given back, and the search ends.
        with suppress(TrialTakenError, StudyAwayError):
            claimed.fail("interrupted", str(error))
        raise
    except LimitError as error:
        claimed.fail(error.failure_class, str(error))
        if error.failure_class == BUDGET_SPENT:
            raise
        return f"FAILED ({error.failure_class}): {error}"
    except TvmoptError as error:
        claimed.fail(error.failure_class, str(error))
        return f"FAILED ({error.failure_class}): {error}"
    except BaseException:  # raised again: the trial must not stay RUNNING
        with suppress(TrialTakenError, StudyAwayError):  # swept when this process is gone
            claimed.fail("interrupted", "its process was interrupted")
        raise


def _stages(session: Session, request: Request) -> list[StageOutput]:
    pipeline, tune = StagePipeline(session, request), request.tune
    converted = pipeline.run("convert")
    known = earlier_databases(session, tune.granularity) if tune.strategy in MEASURING else ()
    if tune.strategy in MEASURING:
        pipeline.bound_tuning(tuning_seconds(session.allow().seconds, converted.metrics, request))
    tuned = pipeline.run("tune", earlier=known)
    return [converted, tuned, pipeline.run("build"), pipeline.run("evaluate")]


def _judge(
    session: Session,
    request: Request,
    claimed: Claimed,
    rules: Rules,
    stages: list[StageOutput],
    spent: dict[str, float],
) -> str:
    found = {k: v for stage in stages[1:] for k, v in stage.metrics.items()} | spent
    metrics = {k: found[k] for k in _FIRST} | found
    metrics[ADJUSTED] = rules.adjusted_ms(metrics)
    violations = rules.limits.violations(metrics)
    baseline = claimed.choice == BASELINE
    if not violation(violations) and leads(claimed.choice, metrics[ADJUSTED], rules.records):
        metrics |= measure_heldout_drop(session, request, stages[0], stages[2])
        violations = rules.limits.violations(metrics)
    total = violation(violations)
    feasible = "baseline" if baseline else "false" if total else "true"
    words = trial_words(
        metrics["latency_ms_p50"], metrics["speedup_vs_baseline"], metrics[REFERENCE_MS],
        metrics["accuracy_drop"], {} if baseline else violations,
    )  # fmt: skip
    client = session.client
    log_metrics(client, session.run_id, {**metrics, "violation": total})
    tags = {"tvmopt.feasible": feasible, "mlflow.note.content": f"{claimed.choice}: {words}"}
    log_tags(client, session.run_id, tags)
    roles = ("convert", "tune", "build", "evaluate")
    claimed.note("stages", {r: s.run_id for r, s in zip(roles, stages, strict=True)})
    claimed.finish(metrics, violations, rules.values(metrics))
    return words


def mend_runs(client: MlflowClient, records: list[Record], parent: str) -> None:
    """Reconcile runs with the study, after a process died between the two updates.

    A trial that finished is FINISHED; every trial's run belongs to ``parent``.
    """
    for record in records:
        if not record.run_id or record.is_void:
            continue
        run = client.get_run(record.run_id)
        if run.data.tags.get("mlflow.parentRunId") != parent:
            log_tags(client, record.run_id, {"mlflow.parentRunId": parent})
        if record.state == FINISHED and run.info.status != "FINISHED":
            log_tags(client, record.run_id, {"tvmopt.failure_class": ""})
            client.set_terminated(record.run_id, "FINISHED")

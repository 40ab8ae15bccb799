"""Final round of a search: time the best artifacts again, interleaved in one process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mlflow.exceptions import MlflowException

from tvmopt.config import EvaluateConfig
from tvmopt.errors import TvmoptError
from tvmopt.runtime.checks import check_machine
from tvmopt.search.choose import FLOAT
from tvmopt.search.effort import Effort
from tvmopt.search.limits import HELDOUT_DROP, Limits, violation
from tvmopt.search.records import Record
from tvmopt.search.shares import FINALS_MEASUREMENT
from tvmopt.search.tried import FINISHED
from tvmopt.search.verdict import Finalist
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE, read_table
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.in_child import check_golden
from tvmopt.tracking.flavor.verify import verify_model
from tvmopt.tracking.pipeline.entry import MEASURED_TAGS
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import add_torch_peer, plan_stage
from tvmopt.tracking.registry.promotion import champion_of
from tvmopt.tracking.store.missing import is_missing
from tvmopt.tracking.store.stage_run import Session, StageOutput, run_stage
from tvmopt.tracking.store.trust import are_usable, checked_artifacts

_MOST = 8
_NEAR = 1.25
_MEMORY_SHARE = 0.8  # of a GPU's memory, for all finalists; the champion and CUDA take the rest
_TIMES_REPEATS = 5  # the last round decides between the best, so its intervals are to be narrow
# Stages whose artifacts the round reads.
_READ = ("convert", "build", "evaluate")
CHAMPION = "the champion so far"


@dataclasses.dataclass(frozen=True)
class Final:
    """Result of the final round.

    Attributes:
        finalists: One for each trial that took part.
        trials: The trial of each, by label.
        reference_ms: ONNX Runtime's p50 in the same round.
        champion: The registered champion so far, when it is of the same model, keeps to the limits
            and is another build.
        run_id: Run of the round.
    """

    finalists: tuple[Finalist, ...]
    trials: dict[str, Record]
    reference_ms: float
    champion: Finalist | None
    run_id: str


def choose_finalists(records: list[Record]) -> list[Record]:
    """Return the trials to measure again side by side, most promising first.

    Several are measured, tuned and untuned, since a trial may have run while the machine was slow.
    Three trials come first: the fastest feasible one, the fastest before the correction for the
    machine's speed, and the fastest untuned one, which tuning has to beat. Their variants under
    other tuning efforts follow, of each trial first the same effort at the other granularity. Then
    come the next fastest trials, each with its other granularity. The last ones are the feasible
    trial that loses least and the fastest in float32, which loses nothing on any samples: they
    remain where held-out samples refuse the faster ones. What these have refused already takes no
    part, in no layout and at no effort. Without a feasible trial, the result is the trial that
    exceeds the limits least.
    """
    finished = [r for r in records if r.state == FINISHED and not r.is_baseline]
    if not finished:
        return []
    heldout = [r for r in finished if r.violations.get(HELDOUT_DROP, 0.0) > 0]
    refused = {r.choice.variant.in_any_layout for r in heldout}
    feasible = [r for r in finished if r.feasible]
    feasible = [r for r in feasible if r.choice.variant.in_any_layout not in refused]
    if not feasible:
        return [min(finished, key=lambda r: (violation(r.violations), r.values[0]))]
    ordered = sorted(feasible, key=lambda r: r.values[0])
    measured = min(feasible, key=lambda r: r.metrics["latency_ms_p50"])
    untuned = [r for r in ordered if r.choice.effort == Effort("default")][:1]
    seeds = [ordered[0], measured, *untuned]
    wanted = list(seeds)
    for seed in seeds:
        same = [r for r in ordered if r.choice.variant == seed.choice.variant]
        wanted += sorted(same, key=lambda r: not r.choice.is_twin(seed.choice))
    for near in (r for r in ordered if r.values[0] <= _NEAR * ordered[0].values[0]):
        wanted += [near, *(r for r in ordered if r.choice.is_twin(near.choice))]
    fastest = list({r.number: r for r in wanted}.values())[:_MOST]
    narrow = [r for r in ordered if r.choice.variant.dtype != FLOAT] or ordered
    safe = [min(narrow, key=_loss)]  # the fastest of equals
    exact = [r for r in ordered if r.choice.variant.dtype == FLOAT][:1]
    safe += [r for r in exact if r not in safe]
    missing = [r for r in safe if r not in fastest]
    kept = [r for r in fastest if r not in safe][: _MOST - len(safe)]
    return [r for r in fastest if r in kept or r in safe] + missing


def _loss(record: Record) -> tuple[float, float]:
    """Return the accuracy drop, and the deviation of the outputs, which tells equal drops apart."""
    metrics = record.metrics
    return metrics["accuracy_drop"], metrics.get("mean_cosine_loss", 0.0)


def fitting(chosen: list[Record], memory_bytes: int) -> list[Record]:
    """Return the first finalists that fit into a GPU's memory together; at least one.

    Args:
        chosen: The finalists, most promising first.
        memory_bytes: Memory of the GPU.
    """
    left_mb = _MEMORY_SHARE * memory_bytes / 1e6
    kept: list[Record] = []
    for record in chosen:
        left_mb -= record.metrics.get("peak_memory_mb", 0.0)
        if kept and left_mb < 0:
            break
        kept.append(record)
    return kept


def measure_finals(
    session: Session, request: Request, limits: Limits, chosen: list[Record], budget_s: float = 0.0
) -> Final:
    """Time trials, the current champion and ONNX Runtime interleaved in one process.

    Args:
        session: Of the search.
        request: Of the search.
        limits: Hard constraints, which the current champion must keep, too.
        chosen: The finalists, most promising first.
        budget_s: Seconds of the study's budget, of which the last round takes a share; 0 for none.
    """
    built = {f"trial {r.number}": _stage(session, r, "build") for r in chosen}
    converted = _stage(session, chosen[0], "convert")
    first = next(iter(built))
    inputs: dict[str, Path] = {"convert": converted.folder}
    digests = {"convert": converted.digest}
    for label, output in built.items():
        role = CANDIDATE if label == first else label
        inputs[f"bundle:{role}"] = output.folder / BUNDLE_DIR
        digests[role] = output.digest
    rival = _rival(session, request, limits, {o.digest for o in built.values()})
    if rival is not None:
        inputs[f"bundle:{CHAMPION}"], digests[CHAMPION] = rival.bundle, rival.digest
    if request.data is not None:
        inputs["data"], digests["data"] = request.data, request.data_digest
    add_torch_peer(request, inputs, digests)
    repeats = _TIMES_REPEATS * request.evaluate.repeats
    share_s = FINALS_MEASUREMENT.seconds(budget_s)
    config: EvaluateConfig = dataclasses.replace(
        request.evaluate,
        repeats=repeats,
        time_limit_s=min(request.evaluate.time_limit_s, share_s),
        accuracy_time_s=share_s if budget_s else request.accuracy_time_s,
    )
    planned = plan_stage(request, "evaluate", config, digests, inputs, label="finals")
    measured = run_stage(session, planned)
    rows = {row["variant"]: row for row in read_table(measured.folder)}
    trials = {f"trial {r.number}": r for r in chosen}
    finalists = tuple(
        _finalist(label, rows[CANDIDATE if label == first else label], trials[label].metrics)
        for label in built
    )
    return Final(
        finalists,
        trials,
        float(rows[REFERENCE]["latency_ms_p50"]),
        _finalist(CHAMPION, rows[CHAMPION], rival.metrics) if rival is not None else None,
        measured.run_id,
    )


def _finalist(label: str, row: dict[str, str], metrics: dict[str, float]) -> Finalist:
    return Finalist(
        label,
        float(row["latency_ms_p50"]),
        float(row["latency_ms_ci_low"]),
        float(row["latency_ms_ci_high"]),
        metrics["accuracy_drop"],
        float(row["bytes"]),
    )


def _stage(session: Session, record: Record, stage: str) -> StageOutput:
    return stage_output(session, record.stages[stage], stage)


def stage_output(session: Session, run_id: str, stage: str) -> StageOutput:
    """Return a finished stage by its run id.

    Raises:
        ArtifactError: When its artifacts are damaged, or not signed where there is a key.
    """
    run = session.client.get_run(run_id)
    return StageOutput.of_run(
        stage, run, checked_artifacts(session.client, run, stage, session.work_dir)
    )


def are_intact(session: Session, record: Record) -> bool:
    """Return whether a trial's artifacts are intact; they are verified again before use.

    Raises:
        MlflowException: When the tracking store does not answer.
    """
    client = session.client
    try:
        runs = {stage: client.get_run(record.stages[stage]) for stage in _READ}
    except KeyError:
        return False
    except MlflowException as error:
        if not is_missing(error):
            raise
        return False
    try:
        return all(are_usable(client, run, stage, session.work_dir) for stage, run in runs.items())
    except MlflowException:  # the artifacts of a run that is there are gone
        return False


@dataclasses.dataclass(frozen=True)
class _Rival:
    bundle: Path
    digest: str
    metrics: dict[str, float]


def _rival(session: Session, request: Request, limits: Limits, known: set[str]) -> _Rival | None:
    """Return the current champion, when it is comparable and not one of the trials."""
    current = champion_of(session.client, request.name)
    if current is None or current.tags.get("digest") in known:
        return None
    wanted = {
        "model_sha256": request.model_digest,
        "input_shapes": request.convert.input_shapes,
        "target": request.target.device,
        "threads": str(request.target.threads),
    }
    if any(current.tags.get(key) != value for key, value in wanted.items()):
        return None
    metrics = {k: float(current.tags[k]) for k in MEASURED_TAGS if k in current.tags}
    if "accuracy_drop" not in metrics or violation(limits.violations(metrics)) > 0:
        return None
    try:
        folder = flavor.download(f"models:/{current.name}/{current.version}", session.work_dir)
        saved = verify_model(folder, current.tags)
        check_machine(saved.metadata)
        check_golden(saved, session.allow())  # before it joins a round that it could end
    except (TvmoptError, MlflowException, OSError):
        # a champion that is damaged, crashes or is gone is no obstacle to a new one
        return None
    return _Rival(saved.bundle, str(current.tags["digest"]), metrics)

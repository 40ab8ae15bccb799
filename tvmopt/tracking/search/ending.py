"""End of a search: final round, verdict, registration and promotion."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.errors import PromotionRefusedError
from tvmopt.search.front import pareto_front
from tvmopt.search.limits import Limits
from tvmopt.search.records import Record
from tvmopt.search.study import SearchStudy
from tvmopt.search.tried import FINISHED
from tvmopt.search.verdict import Finalist, Verdict, choose
from tvmopt.tracking.pipeline.entry import register_built
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.registry.promotion import Promotion, promote_if_better
from tvmopt.tracking.registry.versions import Registered
from tvmopt.tracking.report import sentences
from tvmopt.tracking.search.finals import (
    Final,
    are_intact,
    choose_finalists,
    fitting,
    measure_finals,
    stage_output,
)
from tvmopt.tracking.search.granularity import compare_granularities
from tvmopt.tracking.search.trial import request_for
from tvmopt.tracking.store.runs import log_metrics
from tvmopt.tracking.store.stage_run import Session

_MOST_VERSIONS = 6
FINAL_MS = "latency_ms_final"
"""Metric: p50 in the last round, side by side with the other finalists."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """Result of a search.

    Attributes:
        number: The winning trial; the least violating one when nothing is feasible; -1 when no
            trial finished.
        feasible: Whether it keeps to every limit.
        version: Its version in the registry; empty when no trial finished.
        promoted: Whether it is the champion.
        why: Why it won, and what became of it, one sentence a line.
        stopped: Why no more trials were made.
        latency_ms: Its p50 in the last round.
        reference_ms: ONNX Runtime's p50 in the last round.
        front: Trials on the Pareto front of latency, accuracy drop and size.
        ended_trials: Trials that had ended, to know whether there are new ones.
        finals: Of each trial in the last round its number, its p50 there and both ends of the
            interval, in milliseconds.
    """

    number: int
    feasible: bool
    version: str
    promoted: bool
    why: tuple[str, ...]
    stopped: str
    latency_ms: float
    reference_ms: float
    front: tuple[int, ...]
    ended_trials: int
    finals: tuple[tuple[int, float, float, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ending:
        """Rebuild an ending from :meth:`to_dict`."""
        listed = {key: tuple(data[key]) for key in ("why", "front")}
        return cls(**{**data, **listed, "finals": tuple(map(tuple, data["finals"]))})


def finish_search(
    session: Session, request: Request, study: SearchStudy, limits: Limits, stopped: str
) -> Ending:
    """Measure the finalists, name the winner, register the front and promote the winner."""
    records = [r for r in study.records() if not r.is_void]
    front = front_of(records)
    usable = [r for r in records if r.state == FINISHED and are_intact(session, r)]
    chosen = choose_finalists(usable)
    if request.target.gpu is not None:
        chosen = fitting(chosen, request.target.gpu.memory_bytes)
    ended = study.ended_trials()
    if not chosen:
        why = (sentences.NOTHING_FINISHED,)
        return Ending(-1, False, "", False, why, stopped, 0.0, 0.0, (), ended)
    final = measure_finals(
        dataclasses.replace(session, takes_turns=True), request, limits, chosen, study.budget.time_s
    )
    for number, p50, _, _ in _rounds(final):
        run_id = final.trials[f"trial {number}"].run_id
        log_metrics(session.client, run_id, {FINAL_MS: p50})
    if not chosen[0].feasible:
        return _least_violating(session, request, chosen[0], records, final, stopped, ended)
    for number in front:
        record = next((r for r in usable if r.number == number), None)
        if record is not None and number not in {r.number for r in chosen}:
            _register(session, request, record, None)
    return _crown(session, request, limits, records, final, front, stopped, ended)


def front_of(records: list[Record]) -> tuple[int, ...]:
    """Return the fastest feasible trials on the Pareto front of latency, accuracy and size."""
    feasible = [r for r in records if r.feasible and not r.is_baseline]
    points = [
        (r.values[0], r.metrics["accuracy_drop"], r.metrics["library_bytes"]) for r in feasible
    ]
    found = sorted((feasible[i] for i in pareto_front(points)), key=lambda r: r.values[0])
    return tuple(r.number for r in found[:_MOST_VERSIONS])


def _least_violating(
    session: Session,
    request: Request,
    record: Record,
    records: list[Record],
    final: Final,
    stopped: str,
    ended: int,
) -> Ending:
    finalist = final.finalists[0]
    registered = _register(session, request, record, finalist)
    granularities = compare_granularities(record, records, final)
    why = tuple(sentences.infeasible_lines(record, granularities, registered.version))
    return Ending(
        record.number, False, registered.version, False, why, stopped, finalist.p50,
        final.reference_ms, (), ended, _rounds(final),
    )  # fmt: skip


def _crown(
    session: Session,
    request: Request,
    limits: Limits,
    records: list[Record],
    final: Final,
    front: tuple[int, ...],
    stopped: str,
    ended: int,
) -> Ending:
    """Promote the winner; when it is refused on held-out samples, the next one."""
    left = list(final.finalists)
    why: list[str] = []
    for finalist in left:  # all are versions, the winner's last
        _register(session, request, final.trials[finalist.label], finalist)
    while True:
        verdict = choose(left)
        record = final.trials[verdict.winner.label]
        why += sentences.winner_lines(verdict, record.choice, final.reference_ms)
        why += compare_tuning(final, verdict.winner)
        why += compare_granularities(record, records, final)
        registered = _register(session, request, record, verdict.winner)
        try:
            promoted = promote_if_better(
                session.client,
                registered,
                data=request.data,
                max_accuracy_drop=limits.max_accuracy_drop,
                work_dir=session.work_dir,
                metric=request.asked.metric,
                evidence=f"{final.run_id} {verdict.winner.label}",
                stays=champion_wins(final, verdict.winner),
                compared=True,
                allowance=session.allow(),
                run_id=session.run_id,
            )
        except PromotionRefusedError as error:
            why.append(str(error))
            left.remove(verdict.winner)
            if left:
                continue
            promoted = Promotion(False, sentences.NOTHING_PROMOTED)
            why.insert(0, why.pop())  # the error of the command says it
        why.append(promoted.words)
        return Ending(
            record.number, promoted.done or bool(left), registered.version, promoted.done,
            tuple(why), stopped, verdict.winner.p50, final.reference_ms, front, ended,
            _rounds(final),
        )  # fmt: skip


def _rounds(final: Final) -> tuple[tuple[int, float, float, float], ...]:
    ordered = sorted(final.finalists, key=lambda f: f.p50)
    return tuple((final.trials[f.label].number, f.p50, f.low, f.high) for f in ordered)


def champion_wins(final: Final, winner: Finalist) -> Verdict | None:
    """Return how the current champion beats the winner; None when it does not, or is not there."""
    if final.champion is None:
        return None
    verdict = choose([final.champion, winner])
    return verdict if verdict.winner is final.champion else None


def compare_tuning(final: Final, winner: Finalist) -> list[str]:
    """Compare the efforts of the winner's variant in the final round, if there are several."""
    choice = final.trials[winner.label].choice
    others = [
        (final.trials[f.label].choice.effort, f.p50)
        for f in final.finalists
        if f is not winner and final.trials[f.label].choice.variant == choice.variant
    ]
    return [sentences.tuning_words(choice.effort, winner.p50, others)] if others else []


def _register(
    session: Session,
    request: Request,
    record: Record,
    finalist: Finalist | None,
) -> Registered:
    """Register a trial's artifact, with its measurements as tags."""
    converted, built = (stage_output(session, record.stages[s], s) for s in ("convert", "build"))
    measured = stage_output(session, record.stages["evaluate"], "evaluate")
    if finalist is not None:
        metrics = {**measured.metrics, "latency_ms_p50": finalist.p50}
        measured = dataclasses.replace(measured, metrics=metrics)
    tags = {
        "trial": str(record.number),
        "trial_run": record.run_id,
        "feasible": str(record.feasible).lower(),
    }
    asked = request_for(request, record.choice)
    return register_built(session, asked, converted, built, measured, tags)

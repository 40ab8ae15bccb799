"""Table of the trials of a search."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.search.dimensions import DIMENSIONS, EFFORT, VARIANT
from tvmopt.search.records import ADJUSTED, REFERENCE_MS, Record
from tvmopt.search.tried import FAILED, FINISHED
from tvmopt.tracking.report.sentences import limit_words

_SHOWN = (*VARIANT, EFFORT)
COLUMNS = (
    "trial", "status", *(title for dimension in _SHOWN for title in dimension.columns),
    "p50 ms", "95% interval", "adjusted ms", "final p50 ms", "final 95% interval",
    "ONNX Runtime ms", "speedup", "accuracy drop", "library MB", "memory MB", "tuning s", "note",
)  # fmt: skip


def table(
    records: Sequence[Record],
    winner: int = -1,
    finals: Sequence[tuple[int, float, float, float]] = (),
) -> list[list[str]]:
    """Return the cells, header first: winner, finished trials by latency, failed trials.

    Args:
        records: Trials of the study.
        winner: Number of the winning trial.
        finals: Number, p50 and both ends of its interval of the trials in the last round.
    """
    last = {number: measured for number, *measured in finals}
    finished = [r for r in records if r.state == FINISHED]
    failed = [r for r in records if r.state == FAILED and not r.is_void]

    def rank(record: Record) -> tuple[bool, bool, bool, float]:
        latency = last.get(record.number, [record.metrics[ADJUSTED]])[0]
        unseen = record.number not in last
        return (record.number != winner, not record.feasible, unseen, latency)

    return [
        list(COLUMNS),
        *(_row(r, r.number == winner, last.get(r.number)) for r in sorted(finished, key=rank)),
        *(_row(r, False, None) for r in failed),
    ]


def narrow(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the columns that fit a terminal, without dimensions that have no value."""
    essential = [dimension.columns[0] for dimension in DIMENSIONS]
    titles = (
        "trial", "status", *essential, "p50 ms", "ONNX Runtime ms", "speedup", "final p50 ms",
        "accuracy drop",
    )  # fmt: skip
    kept = [COLUMNS.index(title) for title in titles]
    valued = [i for i in kept if COLUMNS[i] not in essential or any(row[i] for row in cells[1:])]
    return [[row[i] for i in valued] for row in cells]


def _row(record: Record, wins: bool, final: Sequence[float] | None) -> list[str]:
    values, metrics = record.choice.to_dict(), record.metrics
    chosen = [cell for d in _SHOWN for cell in d.cells(values.get(d.name, ""))]
    head = [str(record.number), _status(record, wins), *chosen]
    if record.state != FINISHED:
        return [*head, *[""] * (len(COLUMNS) - len(head) - 1), record.error]
    return [
        *head,
        f"{metrics['latency_ms_p50']:.4g}",
        f"{metrics['latency_ms_ci_low']:.4g} - {metrics['latency_ms_ci_high']:.4g}",
        f"{metrics[ADJUSTED]:.4g}",
        f"{final[0]:.4g}" if final else "",
        f"{final[1]:.4g} - {final[2]:.4g}" if final else "",
        f"{metrics[REFERENCE_MS]:.4g}",
        f"{metrics['speedup_vs_baseline']:.3g}",
        f"{metrics['accuracy_drop']:+.4f}",
        f"{metrics['library_bytes'] / 1e6:.2f}",
        f"{metrics['peak_memory_mb']:.0f}" if "peak_memory_mb" in metrics else "",
        f"{metrics.get('tune_s', 0.0):.1f}",
        limit_words(record.violations),
    ]


def _status(record: Record, wins: bool) -> str:
    if wins:
        return "winner"
    if record.state == FAILED:
        return f"FAILED ({record.failure})"
    if record.is_baseline:
        return "baseline"
    return "feasible" if record.feasible else "not feasible"

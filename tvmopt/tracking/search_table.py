"""Trials as a table: for the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tvmopt.search.limits import in_words
from tvmopt.search.study import Record
from tvmopt.tracking.trial import ADJUSTED, REFERENCE_MS

COLUMNS = (
    "trial", "status", "dtype", "layout", "skip_layers", "effort", "p50 ms", "95% interval",
    "adjusted ms", "ONNX Runtime ms", "speedup", "accuracy drop", "library MB", "memory MB",
    "tuning s", "note",
)  # fmt: skip


def table(records: Sequence[Record], winner: int = -1) -> list[list[str]]:
    """Cells, header first: finished trials by latency, then those that failed."""
    finished = [r for r in records if r.state == "finished"]
    failed = [r for r in records if r.state == "failed" and not r.is_void]
    ordered = sorted(finished, key=lambda r: (not r.feasible, r.metrics[ADJUSTED]))
    return [list(COLUMNS), *(_row(r, r.number == winner) for r in (*ordered, *failed))]


def as_csv(cells: Sequence[Sequence[str]]) -> str:
    """A table as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(cells)
    return out.getvalue()


def narrow(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """The columns that fit a terminal."""
    kept = [COLUMNS.index(c) for c in (
        "trial", "status", "dtype", "layout", "effort", "p50 ms", "ONNX Runtime ms", "speedup",
        "accuracy drop",
    )]  # fmt: skip
    return [[row[i] for i in kept] for row in cells]


def _row(record: Record, wins: bool) -> list[str]:
    variant, metrics = record.choice.variant, record.metrics
    head = [
        str(record.number), _status(record, wins), variant.dtype, variant.layout,
        variant.skip_layers, str(record.choice.effort),
    ]  # fmt: skip
    if record.state != "finished":
        return [*head, *[""] * (len(COLUMNS) - len(head) - 1), record.error]
    return [
        *head,
        f"{metrics['latency_ms_p50']:.4g}",
        f"{metrics['latency_ms_ci_low']:.4g} - {metrics['latency_ms_ci_high']:.4g}",
        f"{metrics[ADJUSTED]:.4g}",
        f"{metrics[REFERENCE_MS]:.4g}",
        f"{metrics['speedup_vs_baseline']:.3g}",
        f"{metrics['accuracy_drop']:+.4f}",
        f"{metrics['library_bytes'] / 1e6:.2f}",
        f"{metrics['peak_memory_mb']:.0f}" if "peak_memory_mb" in metrics else "",
        f"{metrics.get('tune_s', 0.0):.1f}",
        in_words(record.violations),
    ]


def _status(record: Record, wins: bool) -> str:
    if wins:
        return "winner"
    if record.state == "failed":
        return f"FAILED ({record.failure})"
    if record.is_baseline:
        return "baseline"
    return "feasible" if record.feasible else "not feasible"

"""Table of the evaluate stage: one row for each model, beside ONNX Runtime and untuned TVM."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.statistics import LatencySummary
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.module_files import REFERENCE_FILE

TABLE_FILE = "comparison.csv"
CANDIDATE = "candidate"
#: The candidate without tuning: the top-1 schedules of the cost model.
WITHOUT_TUNING = "without_tuning"
UNTUNED = "untuned_tvm"
REFERENCE = "onnxruntime_fp32"


def table_rows(
    latency: dict[str, LatencySummary],
    accuracies: dict[str, Accuracy],
    reference_accuracy: float | None,
    bundles: dict[str, Path],
    convert_dir: Path,
) -> list[dict[str, object]]:
    """Return a row for each model that was measured."""
    rows = []
    for label, own in latency.items():
        if label == REFERENCE or label not in bundles:  # ONNX Runtime, torch.compile
            size = (convert_dir / REFERENCE_FILE).stat().st_size
            accuracy = reference_accuracy if label == REFERENCE else None
        else:
            size = (bundles[label] / LIBRARY_FILE).stat().st_size
            known = accuracies.get(label)
            accuracy = known.accuracy if known else None
        rows.append(table_row(label, own, accuracy, size, latency))
    return rows


def table_row(
    label: str,
    own: LatencySummary | None,
    accuracy: float | None,
    size: int,
    latency: Mapping[str, LatencySummary],
) -> dict[str, object]:
    """Return one row of the table; None where nothing was measured."""

    def speedup(other: LatencySummary | None) -> float | None:
        return other.p50 / own.p50 if own and other else None

    return {
        "variant": label,
        "latency_ms_p50": own.p50 if own else None,
        "latency_ms_ci_low": own.ci_low if own else None,
        "latency_ms_ci_high": own.ci_high if own else None,
        "samples": own.samples if own else None,
        "accuracy": accuracy,
        "bytes": size,
        "speedup_vs_onnxruntime": speedup(latency.get(REFERENCE)),
        "speedup_vs_untuned": speedup(latency.get(UNTUNED)),
    }


def write_table(
    out_dir: Path,
    rows: list[dict[str, object]],
    samples: dict[str, list[float]],
    accuracies: dict[str, Accuracy],
) -> None:
    """Write the table, the samples of the latency (seconds), and the accuracies."""
    with (out_dir / TABLE_FILE).open("w", newline="") as file:
        write_csv(file, rows[0], (row.values() for row in rows))
    (out_dir / "latency_samples.json").write_text(
        json.dumps({label: [s * 1e3 for s in values] for label, values in samples.items()})
    )
    (out_dir / "accuracy.json").write_text(
        json.dumps({label: vars(a) for label, a in accuracies.items()}, indent=2)
    )


def read_table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of an evaluate stage's comparison table."""
    with (folder / TABLE_FILE).open(newline="") as file:
        return list(csv.DictReader(file))

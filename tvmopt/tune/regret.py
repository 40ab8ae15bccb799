"""Regret of the cost model: top-1, top-5 and top-20 against the best measured candidate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvmopt.spreadsheet import write_csv

TOPS = (1, 5, 20)


def regret_rows(log: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per task of a ``fast`` tuning log.

    Returns:
        ``task``, ``measured``, ``best_us``, ``best_rank`` and ``top<k>``: the best latency among
        the measured top-k of the cost model, divided by the best latency overall; 1 is no regret.
    """
    by_task: dict[str, list[dict[str, Any]]] = {}
    for record in log:
        if record.get("rank") is not None and record["latency_us"] is not None:
            by_task.setdefault(record["task"], []).append(record)
    rows = []
    for task, records in by_task.items():
        best = min(records, key=lambda r: r["latency_us"])
        row = {
            "task": task,
            "measured": len(records),
            "best_us": round(best["latency_us"], 2),
            "best_rank": best["rank"],
        }
        for k in TOPS:
            among = [r["latency_us"] for r in records if r["rank"] < k]
            row[f"top{k}"] = round(min(among) / best["latency_us"], 4) if among else ""
        rows.append(row)
    return rows


def write_regret(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as CSV."""
    with path.open("w", newline="") as file:
        header = ["task", "measured", "best_us", "best_rank", *_columns()]
        write_csv(file, header, ([row[name] for name in header] for row in rows))


def mean_regret(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric mean of each ``top<k>`` over the tasks, as metrics ``regret_top<k>``."""
    means = {}
    for column in _columns():
        values = [row[column] for row in rows if row[column] != ""]
        if values:
            mean = math.exp(sum(math.log(v) for v in values) / len(values))
            means[f"regret_{column}"] = mean
    return means


def _columns() -> list[str]:
    return [f"top{k}" for k in TOPS]

"""Output of the benchmarks: environment, Markdown table, rows as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks import peers
from tvmopt import host
from tvmopt.versions import TVM_VERSION, VERSION, installed


class ReportRow(Protocol):
    """A dataclass with the results of one operator, model or task."""

    @property
    def name(self) -> str:
        """Name of the operator, model or task."""

    @property
    def problem(self) -> str:
        """Error of the row; empty on success."""

    @property
    def right(self) -> bool:
        """Whether the row has no error and all results are correct."""


_T = TypeVar("_T")
_R = TypeVar("_R", bound=ReportRow)


def environment(threads: int) -> dict[str, Any]:
    """Collect date, hardware and versions; a peer that is not installed has version None."""
    return {
        "date": str(datetime.date.today()),
        "cpu": host.cpu_model(),
        "cores": host.usable_cores(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "apache-tvm": TVM_VERSION,
        "tvmopt": installed("tvmopt") or VERSION,
        **{name: installed(name) for name in ("onnxruntime", *peers.OPTIONAL)},
    }


def print_environment(facts: Mapping[str, Any], needed: Sequence[str] = peers.OPTIONAL) -> None:
    """Print the environment, a line per missing peer, and a warning if the machine is busy."""
    print(", ".join(f"{name} {value}" for name, value in facts.items() if value is not None))
    if facts["load"] > facts["cores"] / 2:
        # PyTorch's threads spin at barriers: a preempted thread costs each call a time slice.
        print(f"the machine may be busy (load {facts['load']}): run this alone, PyTorch's latency "
              "suffers most")  # fmt: skip
    for name in needed:
        if not peers.available(name):
            print(f"{name} is not installed, its column stays '-': pip install -e .[bench]")


def measure_all(
    todo: Sequence[_T], measure: Callable[[_T], _R], verdict: Callable[[_R], str]
) -> list[_R]:
    """Measure one row after another, and print a line of progress for each."""
    rows: list[_R] = []
    for number, item in enumerate(todo, start=1):
        row = measure(item)
        text = row.problem or verdict(row)
        print(f"{number}/{len(todo)} {row.name}: {text}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number for a table; None is ``-``."""
    return "-" if value is None else format(value, form)


def one_line(error: Exception) -> str:
    """Return the message of an error in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def finish(path: str, facts: Mapping[str, Any], rows: Sequence[ReportRow], **more: Any) -> int:
    """Write the results to ``path`` unless it is empty; return the exit code."""
    shown = [dataclasses.asdict(row) | {"right": row.right} for row in rows]  # type: ignore[call-overload]
    write_json(path, {"environment": facts, "rows": shown, **more})
    return 0 if all(row.right for row in rows) else 1


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write JSON to ``path`` unless it is empty; non-finite numbers become strings."""
    if path:
        text = json.dumps(_finite(content), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

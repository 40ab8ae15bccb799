"""Chrome trace of one call: ``trace.json``, which Perfetto and ``chrome://tracing`` open.

Format: "Trace Event Format", complete events (``ph: X``, times in microseconds) and metadata
events (``ph: M``) with the names of the tracks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tvmopt.profile.rows import ProfileRow

KERNELS, LAYERS = 1, 2
"""Tracks of a process."""


def trace(
    networks: Mapping[str, tuple[Sequence[ProfileRow], Sequence[np.ndarray]]], threads: int
) -> dict[str, Any]:
    """Return the trace of networks, each a process, of the run nearest to its median.

    Args:
        networks: Rows and timestamps of all runs, by name.
        threads: Threads of a call.
    """
    events: list[dict[str, Any]] = []
    for process, (name, (rows, runs)) in enumerate(networks.items(), start=1):
        events.append(_metadata(process, 0, "process_name", name))
        events.append(_metadata(process, KERNELS, "thread_name", "kernels"))
        events.append(_metadata(process, LAYERS, "thread_name", "layers"))
        times = typical(runs) / 1e3
        times -= times[0, 0] if len(times) else 0.0
        events += _kernels(process, rows, times, threads)
        events += _layers(process, rows, times, threads)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def typical(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the timestamps of the run whose sum of kernel times is the median."""
    totals = [float((run[:, 1] - run[:, 0]).sum()) for run in runs]
    return runs[int(np.argsort(totals)[len(totals) // 2])]


def _kernels(
    process: int, rows: Sequence[ProfileRow], times: np.ndarray, threads: int
) -> Iterator[dict[str, Any]]:
    for row, (start, end) in zip(rows, times, strict=True):
        facts = {
            "shape": row.shape, "dtype": row.dtype, "instructions": row.instructions,
            "flops": row.flops, "bytes": row.bytes, "threads": threads,
            "roofline_us": row.roofline_us, "layer": row.layer_name,
        }  # fmt: skip
        yield _complete(process, KERNELS, row.kernel, "kernel", start, end, facts)


def _layers(
    process: int, rows: Sequence[ProfileRow], times: np.ndarray, threads: int
) -> Iterator[dict[str, Any]]:
    numbered = groupby(range(len(rows)), key=lambda at: rows[at].layer)
    for layer, group in numbered:
        places = list(group)
        row = rows[places[0]]
        name = row.operators if layer is None else f"{layer} {row.layer_name}"
        start, end = times[places[0], 0], times[places[-1], 1]
        facts = {"op": row.op, "kernels": len(places), "threads": threads}
        yield _complete(process, LAYERS, name, "layer", start, end, facts)


def _complete(
    process: int, track: int, name: str, kind: str, start: float, end: float, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "cat": kind, "ph": "X", "ts": max(0.0, float(start)),
        "dur": max(0.0, float(end - start)), "pid": process, "tid": track, "args": facts,
    }  # fmt: skip


def _metadata(process: int, track: int, kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}

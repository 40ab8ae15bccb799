"""The trace follows the Trace Event Format."""

from __future__ import annotations

import json

import numpy as np

from tests.profile.planted import row
from tvmopt.profile.trace import KERNELS, LAYERS, trace, typical

ROWS = [row(), row(call=1), row(call=2, layer=None, layer_name="", operators="max pool2d")]
RUNS = [np.array([[1000, 2000], [2000, 5000], [5500, 5500 + end]]) for end in (100, 900, 500)]


def check_schema(data: dict) -> None:
    """Check every event against what the Trace Event Format asks of ``X`` and ``M`` events."""
    assert set(data) == {"traceEvents", "displayTimeUnit"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    for event in data["traceEvents"]:
        assert isinstance(event["name"], str) and event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        else:
            assert isinstance(event["cat"], str)
            assert all(isinstance(event[k], float) and event[k] >= 0 for k in ("ts", "dur"))


def test_a_track_for_kernels_and_one_for_layers():
    data = trace({"model": (ROWS, RUNS), "baseline": (ROWS, RUNS)}, 2)
    check_schema(json.loads(json.dumps(data)))
    own = [e for e in data["traceEvents"] if e["pid"] == 1 and e["ph"] == "X"]
    kernels = [e for e in own if e["tid"] == KERNELS]
    assert [(e["ts"], e["dur"]) for e in kernels] == [(0.0, 1.0), (1.0, 3.0), (4.5, 0.5)]
    assert kernels[0]["args"]["threads"] == 2 and kernels[0]["args"]["shape"] == "1x8x8x64"
    layers = [e for e in own if e["tid"] == LAYERS]
    assert [(e["name"], e["ts"], e["dur"]) for e in layers] == [
        ("0 conv0", 0.0, 4.0), ("max pool2d", 4.5, 0.5),
    ]  # fmt: skip
    assert {e["pid"] for e in data["traceEvents"]} == {1, 2}


def test_the_run_of_the_median_is_shown():
    assert typical(RUNS)[2, 1] == 6000

"""Indices that a caller gives never reach memory outside of their table, in any operator.

Calls out of range run in a process of their own: what they find may be a crash.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tvmopt

_node = onnx.helper.make_node
_TABLE = np.arange(20, dtype=np.float32).reshape(4, 5)
# Node, shape of its indices, its constants, least and most index.
OPERATORS = {
    "Gather": (_node("Gather", ["t", "i"], ["y"]), [3], {"t": _TABLE}, -4, 3),
    "GatherElements": (
        _node("GatherElements", ["t", "i"], ["y"], axis=1), [4, 2], {"t": _TABLE}, -5, 4,
    ),
    "GatherND": (_node("GatherND", ["t", "i"], ["y"]), [3, 2], {"t": _TABLE}, -4, 3),
    "GatherND of rows": (_node("GatherND", ["t", "i"], ["y"]), [3, 1], {"t": _TABLE}, -4, 3),
    "GatherND of batches": (
        _node("GatherND", ["t", "i"], ["y"], batch_dims=1), [4, 1], {"t": _TABLE}, -5, 4,
    ),
    "ScatterElements": (
        _node("ScatterElements", ["t", "i", "u"], ["y"], axis=1), [4, 1],
        {"t": _TABLE, "u": -np.ones((4, 1), np.float32)}, -5, 4,
    ),
    "ScatterElements that adds": (
        _node("ScatterElements", ["t", "i", "u"], ["y"], reduction="add"), [2, 5],
        {"t": _TABLE, "u": np.ones((2, 5), np.float32)}, -4, 3,
    ),
    "ScatterND": (
        _node("ScatterND", ["t", "i", "u"], ["y"]), [1, 2],
        {"t": _TABLE, "u": -np.ones(1, np.float32)}, -4, 3,
    ),
    "ScatterND of rows": (
        _node("ScatterND", ["t", "i", "u"], ["y"]), [1, 1],
        {"t": _TABLE, "u": -np.ones((1, 5), np.float32)}, -4, 3,
    ),
    "MaxUnpool": (
        _node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]), [1, 1, 1, 2],
        {"x": np.ones((1, 1, 1, 2), np.float32)}, 0, 7,
    ),
}  # fmt: skip
_FAR = (10**6, 2**31, 2**62, -(2**62), -(2**63))


def _model(make_model, name, dtype=np.float32):
    node, shape, constants, *_ = OPERATORS[name]
    constants = {key: array.astype(dtype) for key, array in constants.items()}
    model = make_model(
        [node], {"i": ("int64", shape)}, {"y": (np.dtype(dtype).name, None)}, constants
    )
    return model


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_within_range_equals_onnx_runtime(make_model, name):
    model = _model(make_model, name)
    _, shape, _, least, most = OPERATORS[name]
    theirs = ort.InferenceSession(model.SerializeToString())
    ours = tvmopt.compile(model, fallback="refuse")
    for index in range(least, most + 1):
        feed = {"i": np.full(shape, index, np.int64)}
        if name == "MaxUnpool":  # each index once
            feed["i"].flat[1] = (index + 1) % (most + 1)
        np.testing.assert_array_equal(ours(feed)[0], theirs.run(None, feed)[0])


_SCRIPT = """
import json, sys
import numpy as np, tvmopt
from pathlib import Path
for case in json.loads(Path(sys.argv[1]).read_text()):
    print(case["name"], flush=True)
    model = tvmopt.compile(case["path"], fallback="refuse")
    def run(index):
        return np.asarray(model({"i": np.full(case["shape"], index, "int64")})[0])
    for index in case["indices"]:
        found = run(index)
        if found.dtype.kind == "f":
            assert np.isnan(found).all(), (case["name"], index, found)
        else:
            nearest = run(case["most"] if index > 0 else 0)
            assert np.array_equal(found, nearest), (case["name"], index, found)
"""


def test_out_of_range_gives_nan_or_the_nearest_place(make_model, tmp_path):
    cases = []
    # Of integers: operators whose indices are of one axis, so that the nearest place is one index.
    integers = ("GatherElements", "GatherND of rows", "ScatterND of rows")
    for name, dtype in [*((n, np.float32) for n in OPERATORS), *((n, np.int32) for n in integers)]:
        path = tmp_path / f"{len(cases)}.onnx"
        onnx.save_model(_model(make_model, name, dtype), str(path))
        _, shape, _, least, most = OPERATORS[name]
        indices = [most + 1, *_FAR]
        if dtype == np.float32 and name != "MaxUnpool":  # which counts from the end, as a scatter
            indices.append(least - 1)
        cases.append(
            {"name": name, "path": str(path), "shape": shape, "indices": indices, "most": most}
        )
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path / "cases.json")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-100:], done.stderr[-500:])
    assert len(done.stdout.splitlines()) == len(cases)


@pytest.mark.parametrize("length", [5, 10**6, 2**62])
def test_lengths_beyond_the_axis_reverse_all_of_it(make_model, length):
    node = _node("ReverseSequence", ["x", "n"], ["y"], batch_axis=1, time_axis=0)
    inputs = {"x": ("float32", [4, 3]), "n": ("int64", [3])}
    model = tvmopt.compile(
        make_model([node], inputs, {"y": ("float32", [4, 3])}, {}), fallback="refuse"
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y = model({"x": x, "n": np.array([length, 0, 2])})[0]
    np.testing.assert_array_equal(y[:, 0], x[::-1, 0])
    np.testing.assert_array_equal(y[:, 1], x[:, 1])
    np.testing.assert_array_equal(y[:, 2], x[[1, 0, 2, 3], 2])

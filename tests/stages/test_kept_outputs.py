"""Outputs of the float model are computed one time for equal inputs of one command."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt import command_cache
from tvmopt.stages import kept_outputs
from tvmopt.stages.kept_outputs import with_kept_outputs

_X = np.arange(6, dtype=np.float32).reshape(2, 3)


class _FloatModel:
    def __init__(self, *outputs: np.ndarray) -> None:
        self.calls, self.outputs = 0, list(outputs)

    def __call__(self, inputs):
        self.calls += 1
        return self.outputs or [inputs["x"] + 1, inputs["x"].sum(keepdims=True)]


@pytest.fixture
def model(tmp_path):
    with command_cache.shared_in(tmp_path):
        yield "digest of a model"


def test_equal_inputs_are_computed_one_time(model) -> None:
    compute = _FloatModel()
    first = with_kept_outputs(compute, model)({"x": _X})
    again = with_kept_outputs(compute, model)({"x": _X.copy()})
    assert compute.calls == 1
    for one, other in zip(first, again, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "inputs",
    [{"x": _X + 1}, {"x": _X.astype(np.float64)}, {"x": _X.reshape(3, 2)}, {"x": _X, "y": _X}],
    ids=["values", "dtype", "shape", "names"],
)
def test_other_inputs_are_computed(model, inputs) -> None:
    compute = _FloatModel()
    outputs = with_kept_outputs(compute, model)
    outputs({"x": _X})
    outputs(inputs)
    assert compute.calls == 2


def test_another_model_is_computed(model) -> None:
    compute = _FloatModel()
    with_kept_outputs(compute, model)({"x": _X})
    with_kept_outputs(compute, "of another")({"x": _X})
    assert compute.calls == 2


@pytest.mark.parametrize(
    "output", [np.zeros(9, np.float32), np.array(["text"], object)], ids=["large", "objects"]
)
def test_large_outputs_and_objects_are_not_kept(model, monkeypatch, tmp_path, output) -> None:
    monkeypatch.setattr(kept_outputs, "_MOST_BYTES", 32)
    compute = _FloatModel(output)
    outputs = with_kept_outputs(compute, model)
    outputs({"x": _X})
    outputs({"x": _X})
    assert compute.calls == 2
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".npz"]


def test_nothing_is_kept_outside_of_a_command(monkeypatch) -> None:
    monkeypatch.delenv("TVMOPT_COMMAND_CACHE", raising=False)
    compute = _FloatModel()
    assert with_kept_outputs(compute, "digest") is compute

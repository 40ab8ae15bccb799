"""Calibration and sensitivity analysis within a time limit, where the float model is slow."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tvmopt
from tvmopt.config import CalibrateConfig
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs
from tvmopt.quantize import collect_ranges, sensitivity
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.layerwise import fit_layers
from tvmopt.stages import calibrate as stage
from tvmopt.tracking.pipeline.entry import EXAMPLE

FOLDER = Path(tvmopt.__file__).parent
MODEL, DATA = FOLDER / EXAMPLE["model"], FOLDER / EXAMPLE["data"]


class _Slow:
    """A session whose calls take at least so many seconds; counts them."""

    def __init__(self, session, seconds: float) -> None:
        self._session, self._seconds, self.calls = session, seconds, 0

    def run(self, *arguments):
        self.calls += 1
        time.sleep(self._seconds)
        return self._session.run(*arguments)

    def __getattr__(self, name: str):
        return getattr(self._session, name)


@pytest.fixture(scope="module")
def prepared():
    loaded = load_onnx(MODEL)
    return prepare(loaded, shapes_for(loaded, EXAMPLE["input_shapes"]))


@pytest.fixture(scope="module")
def dataset(prepared):
    return load_dataset(DATA, input_specs(prepared.reference)).split("calibrate")


def _silent(done: int, total: int, what: str) -> None:
    """Show no progress."""


def test_a_slow_model_is_calibrated_on_fewer_samples(prepared, dataset, monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "new_session", lambda model: _Slow(new_session(model), 0.02))
    found = stage.samples_within(prepared.model, dataset, 2.0)
    # half of the time for 12 calls a batch
    assert 1 <= found.samples <= math.ceil(1.0 / (12 * 0.02)) * dataset.batch_size
    assert stage.samples_within(prepared.model, dataset, 0.001).samples == dataset.batch_size
    assert stage.samples_within(prepared.model, dataset, 1e6).samples == dataset.samples

    config = CalibrateConfig(EXAMPLE["input_shapes"], calibration_time=2.0)
    result = stage.calibrate(config, MODEL, tmp_path, _silent, DATA)
    samples = int(result.metrics["calibration_samples"])
    assert samples < config.calibration_samples
    assert f"{samples} of {config.calibration_samples} samples, for time" in result.changed
    assert "for time" in result.tags["tvmopt.notes"]
    assert stage.read_ranges(tmp_path).tensors


def test_without_a_limit_all_samples_are_seen(tmp_path):
    config = CalibrateConfig(EXAMPLE["input_shapes"])
    assert "calibration_time" not in config.to_dict()  # digests are as before
    result = stage.calibrate(config, MODEL, tmp_path, _silent, DATA)
    assert result.metrics["calibration_samples"] == config.calibration_samples
    assert "tvmopt.notes" not in result.tags


def test_layers_that_time_does_not_reach_stay_as_they_are(prepared, dataset):
    batches = [batch.inputs for batch in dataset.take(range(4)).batches()]
    ranges = collect_ranges(prepared.model, batches)
    fitted = fit_layers(prepared.model, ranges, batches)
    none = fit_layers(prepared.model, ranges, batches, deadline=time.monotonic())
    assert fitted.roundings and not none.roundings and not none.biases
    assert none.tensors == ranges.tensors


def test_a_slow_model_is_analysed_on_fewer_samples_within_its_time(prepared, dataset, monkeypatch):
    for name in ("sensitivity", "joint"):  # the package has a function of the first name
        module = sys.modules[f"tvmopt.quantize.{name}"]
        monkeypatch.setattr(module, "new_session", lambda model: _Slow(new_session(model), 0.2))
    start = time.monotonic()
    found = sensitivity(prepared, dataset, dtypes=("float16",), time_limit_s=6.0)
    assert time.monotonic() - start < 20  # one call of the float model takes 0.2 s
    assert found.samples < 16
    assert f"{found.samples} samples were measured, for time" in found.notes
    assert found.skip_sets and np.isfinite([c.error for c in found.costs]).all()


@pytest.mark.parametrize(("width", "most_s"), [(1.0, 10.0), (0.05, 30.0)])
def test_an_analysis_is_short_where_int8_meets_the_bar(
    prepared, dataset, monkeypatch, width, most_s
):
    """Other maps of dtypes are alternatives then; ranges of a twentieth break int8."""
    module = sys.modules["tvmopt.quantize.sensitivity"]
    divide, left = module.phase_deadlines, []

    def recorded(now, deadline, measurement_s):
        left.append(deadline - now)
        return divide(now, deadline, measurement_s)

    monkeypatch.setattr(module, "phase_deadlines", recorded)
    ranges = collect_ranges(prepared.model, [batch.inputs for batch in dataset.batches()])
    narrow = {n: (width * low, width * high) for n, (low, high) in ranges.tensors.items()}
    found = sensitivity(
        prepared, dataset, dtypes=("bfloat16", "int8"), max_drop=0.05, layer_dtypes=True,
        ranges=dataclasses.replace(ranges, tensors=narrow), time_limit_s=30.0,
    )  # fmt: skip
    assert 0.5 * most_s < left[0] <= most_s
    assert (set(found.chosen_map.dtypes) == {"int8"}) is (width == 1.0)

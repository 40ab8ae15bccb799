"""The profile stage on a compiled model, and the timers of both kinds of library."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.profile.test_trace import check_schema
from tvmopt.build import build_library
from tvmopt.config import ProfileConfig
from tvmopt.device.target import TargetSpec
from tvmopt.errors import AccuracyError, ArtifactError, ConfigError
from tvmopt.profile.clock import clock_hertz
from tvmopt.profile.timers import MachineTimer, kernel_timer
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.library import open_library
from tvmopt.runtime.model import read_golden
from tvmopt.stages.profile import TABLE_FILE, TRACE_FILE, profile, read_layers
from tvmopt.stages.size_folders import read_size
from tvmopt.transform.lower import lower


def _quiet(done, total, text):
    pass


@pytest.fixture(scope="module")
def profiled(conv_build, tmp_path_factory):
    """Return the output folder and the result of the stage."""
    out = tmp_path_factory.mktemp("profile")
    folders = [{"model": conv_build / name} for name in ("convert", "tune", "build/bundle")]
    return out, profile(ProfileConfig(5), *folders, out, _quiet)


def test_rows_match_the_layer_table(profiled, conv_build):
    from tvmopt.profile.rows import read_rows

    rows = read_rows(profiled[0] / TABLE_FILE)
    layers = read_layers(conv_build / "convert")
    found = {int(row["layer"]): row for row in rows if row["layer"]}
    assert set(found) == {layer.index for layer in layers}
    for layer in layers:
        row = found[layer.index]
        assert (row["layer_name"], row["op"], row["dtype"]) == (layer.name, layer.op, layer.dtype)
        assert float(row["flops"]) == layer.flops
        assert float(row["roofline_us"]) > 0 and row["instructions"]
    assert [int(row["call"]) for row in rows] == list(range(len(rows)))
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-3)


def test_kernels_take_part_of_the_call(profiled):
    metrics = profiled[1].metrics
    assert metrics["profile_total_us"] > 0 and metrics["profile_call_us"] > 0
    assert 0.02 < metrics["profile_coverage"] < 3  # other work runs beside the tests


def test_trace_is_valid(profiled):
    check_schema(json.loads((profiled[0] / TRACE_FILE).read_text()))


def test_wrong_outputs_are_refused(conv_build, tmp_path, monkeypatch):
    from tvmopt.stages import profile as stage

    def doubled(bundle, metadata):
        inputs, outputs = read_golden(bundle, metadata)
        return inputs, [2 * array + 1 for array in outputs]

    monkeypatch.setattr(stage, "read_golden", doubled)
    folders = [{"model": conv_build / name} for name in ("convert", "tune", "build/bundle")]
    with pytest.raises(AccuracyError, match="must equal the golden output"):
        profile(ProfileConfig(5), *folders, tmp_path, _quiet)


def test_a_gpu_model_is_refused(conv_build, tmp_path, monkeypatch):
    from tvmopt.device.target import resolve_target

    spec = resolve_target("nvidia-h200")
    monkeypatch.setattr(TargetSpec, "from_dict", lambda data: spec)
    folders = [{"model": conv_build / name} for name in ("convert", "tune", "build/bundle")]
    with pytest.raises(ConfigError, match="must be for a CPU, but it is for"):
        profile(ProfileConfig(5), *folders, tmp_path, _quiet)


def test_the_virtual_machine_calls_the_same_kernels(conv_build, tmp_path):
    bundle = conv_build / "build" / "bundle"
    metadata = ModelMetadata.read(bundle)
    target = TargetSpec.from_dict(metadata.target)
    mod = lower(read_size(conv_build / "convert", 0), target.to_tvm())
    inputs, expected = read_golden(bundle, metadata)
    names = []
    for native in (True, False):
        path = tmp_path / f"{native}.so"
        build_library(mod, target, path, native=native, timed=True)
        executor = open_library(str(path), threads=2, native=native)
        timer = kernel_timer(executor, [executor.tensor(array) for array in inputs.values()])
        assert isinstance(timer, MachineTimer) is not native
        for _ in range(2):
            outputs = [executor.read(tensor) for tensor in timer()]
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-3, atol=1e-4)
        assert len(timer.runs) == 2 and timer.runs[1].shape == (len(timer.names), 2)
        assert (timer.runs[1][:, 1] >= timer.runs[1][:, 0]).all()
        assert (np.diff(timer.runs[1].reshape(-1)) >= 0).all()  # one after the other
        names.append([name for name in timer.names if "reshape" not in name])
    assert names[0] == names[1]


def test_a_library_without_timestamps_is_refused(conv_build):
    path = conv_build / "build" / "bundle" / "model.so"
    executor = open_library(str(path), threads=2, native=True)
    with pytest.raises(ArtifactError, match="must be a profiling build"):
        executor.timestamps()


def test_the_clock_is_that_of_a_processor():
    assert 2e8 < clock_hertz() < 1e10

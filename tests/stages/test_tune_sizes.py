"""The stages of a model in two sizes, tuned by measurement."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper

import tvmopt
from tvmopt.config import BuildConfig, ConvertConfig, EvaluateConfig, TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.runtime import CompiledModel
from tvmopt.runtime.sizes import ROWS, SizeDimension
from tvmopt.stages import evaluate_host, host_latency
from tvmopt.stages.build import build
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE
from tvmopt.stages.convert import convert
from tvmopt.stages.evaluate import evaluate
from tvmopt.stages.module_files import PARAMS_FILE, REFERENCE_FILE
from tvmopt.stages.size_folders import read_dimensions, size_folders
from tvmopt.stages.size_latency import BASELINE_SIZES_SERIES, SIZES_SERIES
from tvmopt.stages.size_reference import read_reference
from tvmopt.stages.tune import tune
from tvmopt.tune.database import RECORD_FILE


def _quiet(done: int, total: int, text: str) -> None:
    pass


@pytest.fixture(scope="module")
def stages(make_model, tmp_path_factory):
    """Run the stages; return their folders and results by name."""
    folder = tmp_path_factory.mktemp("fast")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    shapes = {"x": ("float32", ["n", 64])}, {"y": ("float32", ["n", 48])}
    onnx.save(
        make_model(nodes, *shapes, {"w": np.ones((64, 48), np.float32)}), str(folder / "model.onnx")
    )
    converted, tuned, built = (folder / name for name in ("convert", "tune", "build"))
    for path in (converted, tuned, built):
        path.mkdir()
    target = resolve_target("host", 2).to_dict()

    asked = ConvertConfig("n=4,16", target)
    results = {
        "convert": convert(asked, folder / "model.onnx", converted, _quiet),
        "tune": tune(TuneConfig(target, strategy="fast", topk=2), converted, tuned, _quiet),
        "build": build(BuildConfig("m", target), converted, tuned, "d", built, _quiet),
    }
    return folder, results


def test_a_further_size_keeps_only_what_differs(stages) -> None:
    folder, results = stages
    largest, further = size_folders(folder / "convert")
    assert (largest / PARAMS_FILE).is_file()
    assert not (further / PARAMS_FILE).exists()
    whole, part = ((one / REFERENCE_FILE).stat().st_size for one in (largest, further))
    assert whole > 64 * 48 * 4 > 10 * part
    place = ((0, 0),), ((0, 0),)
    assert read_dimensions(largest) == (SizeDimension("n", *place, ROWS),)
    assert results["convert"].metrics["sizes"] == 2
    lines = results["convert"].changed
    assert "2 sizes in one library" in lines
    assert "n: 4, 16; calls of any number of rows are divided among them" in lines


def test_one_candidate_of_a_further_size_is_not_measured(stages) -> None:
    folder, results = stages
    assert len(size_folders(folder / "tune")) == 1
    assert results["tune"].metrics["tune_trials"] == 2
    assert results["tune"].changed[-1] == "1 further sizes: top-1 of the cost model"
    with (folder / "build" / "schedules.csv").open(newline="") as file:
        largest, further = (row["schedule"] for row in csv.DictReader(file))
    assert largest == "database"
    assert further.startswith("default:")


def test_each_size_has_records(stages, tmp_path) -> None:
    folder, _ = stages
    tuned, built = tmp_path / "tune", tmp_path / "build"
    tuned.mkdir()
    built.mkdir()
    target = resolve_target("host", 2).to_dict()
    asked = TuneConfig(target, strategy="fast", topk=20)
    found = tune(asked, folder / "convert", tuned, _quiet)
    largest, further = size_folders(tuned)
    assert further == tuned / "sizes" / "1"
    own, both = (
        (one / "database" / RECORD_FILE).read_text().splitlines() for one in (largest, further)
    )
    assert len(own) == 1
    assert len(both) == 2  # the record of the largest, too
    words = f"1 further sizes: {found.metrics['tune_trials']:.0f} candidates measured for all"
    assert words in found.changed[-1]
    build(BuildConfig("m", target), folder / "convert", tuned, "d", built, _quiet)
    with (built / "schedules.csv").open(newline="") as file:
        rows = [(row["schedule"], row["record"]) for row in csv.DictReader(file)]
    assert rows == [("database", "subgraph")] * 2


def test_each_size_was_timed(stages) -> None:
    folder, _ = stages
    metadata = tvmopt.load(folder / "build" / "bundle").metadata
    with (folder / "build" / "sizes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["x"] for row in rows] == ["16x64", "4x64"]
    assert [float(row["milliseconds"]) for row in rows] == [
        size.milliseconds for size in metadata.sizes
    ]
    assert all(size.milliseconds > 0 for size in metadata.sizes)


def test_the_baseline_can_have_the_largest_size_only(stages, tmp_path) -> None:
    folder, _ = stages
    config = BuildConfig("m", resolve_target("host", 2).to_dict(), "none")
    config = dataclasses.replace(config, all_sizes=False)
    build(config, folder / "convert", None, "d", tmp_path, lambda *_: None)
    metadata = tvmopt.load(tmp_path / "bundle").metadata
    assert (metadata.sizes, metadata.dimensions) == ((), ())


def test_the_reference_of_a_further_size_is_complete(stages) -> None:
    folder, _ = stages
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    model = read_reference(folder / "convert", 1)
    [y] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, np.maximum(x @ np.ones((64, 48)), 0), rtol=1e-4, atol=1e-4)


class TestEvaluate:
    """Latencies of the sizes beside ONNX Runtime's, and of a mix of them."""

    @pytest.fixture
    def measure(self, stages, tmp_path, monkeypatch):
        """Evaluate the library with a mix; return the result."""
        monkeypatch.setattr(evaluate_host, "measure_fresh_process", lambda *_: {})
        folder, _ = stages

        def run(mix: str):
            config = EvaluateConfig(threads=2, repeats=5, time_limit_s=1.0, size_mix=mix)
            bundles = {CANDIDATE: folder / "build" / "bundle"}
            return evaluate(config, folder / "convert", bundles, tmp_path, lambda *_: None)

        return run

    def test_each_size_beside_onnx_runtime(self, measure) -> None:
        series = measure("").series
        assert set(series) == {SIZES_SERIES, BASELINE_SIZES_SERIES}
        for points in series.values():
            assert [size for size, _, _ in points] == [0, 1]
            assert all(latency > 0 for _, _, latency in points)

    def test_a_mix_calls_each_size_as_often(self, measure, monkeypatch) -> None:
        called: list[int] = []
        run = CompiledModel.__call__

        def counted(self, inputs):
            called.append(len(inputs["x"]))
            return run(self, inputs)

        monkeypatch.setattr(CompiledModel, "__call__", counted)
        rounds: list[list[int]] = []
        plain = host_latency.interleave

        def rounds_of(contenders, *limits):
            for name, call in contenders.items():
                called.clear()
                call()
                rounds.append((name, list(called)))
            return plain(contenders, *limits)

        monkeypatch.setattr(host_latency, "interleave", rounds_of)
        result = measure("6*n=4;2*n=16")
        assert rounds == [(CANDIDATE, [16, 4, 4, 4]), (REFERENCE, [])]
        metrics = result.metrics
        assert metrics["throughput_per_s"] == pytest.approx(7e3 / metrics["latency_ms_p50"])
        assert metrics["speedup_vs_baseline"] > 0
        assert result.tags["tvmopt.latency_of"] == "mean call of rounds of 4: 6*n=4;2*n=16"

    def test_a_mix_that_does_not_fit_is_refused(self, measure) -> None:
        with pytest.raises(ConfigError, match="no size of input_shapes is 8"):
            measure("1*n=8")

    def test_a_board_measures_no_mix(self) -> None:
        with pytest.raises(ConfigError, match="size_mix is measured on this machine only"):
            EvaluateConfig(threads=2, size_mix="1*n=4", rpc_tracker="h:1", rpc_key="k")

"""The evaluate stage on a board, and without any device that runs the model."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tvmopt.device.target import TargetSpec
from tvmopt.errors import AccuracyError, ArtifactError, ConfigError
from tvmopt.remote.model import RemoteModel
from tvmopt.stages import compared_accuracy
from tvmopt.stages.comparison_table import CANDIDATE, UNTUNED, read_table
from tvmopt.tracking.report.tables import as_text, comparison


@pytest.fixture
def run(evaluate_model, conv_bundle):
    """Evaluate a bundle together with the untuned one."""

    def evaluate_bundle(bundle=conv_bundle, data=None, **options):
        bundles = {CANDIDATE: bundle, UNTUNED: conv_bundle}
        return evaluate_model(data, bundles, **{"repeats": 12, **options})

    return evaluate_bundle


def test_metrics_tags_and_table(run, of_board):
    images = np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32)
    result, out = run(data={"x": images}, **of_board)
    metrics = result.metrics
    wanted = {f"latency_ms_{k}" for k in ("mean", "std", "p50", "p90", "p95", "p99")}
    wanted |= {"latency_ms_ci_low", "latency_ms_ci_high", "throughput_per_s", "accuracy"}
    wanted |= {"accuracy_drop", "max_abs_error", "library_bytes", "golden_max_deviation"}
    wanted |= {"speedup_vs_untuned", "untuned_latency_ms_p50"}
    assert wanted <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())
    assert not {"peak_memory_mb", "baseline_latency_ms_p50", "speedup_vs_baseline"} & set(metrics)
    assert (metrics["accuracy"], metrics["accuracy_drop"]) == pytest.approx((1, 0), abs=1e-9)
    low, p50, high = (metrics[f"latency_ms_{name}"] for name in ("ci_low", "p50", "ci_high"))
    assert 0 < low <= p50 <= high

    tags = result.tags
    assert (tags["tvmopt.rpc_key"], tags["tvmopt.rpc_tracker"]) == tuple(
        of_board[k] for k in ("rpc_key", "rpc_tracker")
    )
    assert "linux" in tags["tvmopt.board"]
    assert "no ONNX Runtime" in tags["tvmopt.unmeasured.baseline_latency_ms_p50"]
    assert "this machine only" in tags["tvmopt.unmeasured.peak_memory_mb"]
    assert "tvmopt.accuracy_samples" not in tags
    assert "on 20 samples" in result.changed[0]
    assert result.changed[1].startswith("fidelity is the R2")
    assert "of board own" in result.changed[2]

    rows = {row["variant"]: row for row in read_table(out)}
    assert set(rows) == {CANDIDATE, UNTUNED}
    assert rows[CANDIDATE]["speedup_vs_onnxruntime"] == ""
    samples = json.loads((out / "latency_samples.json").read_text())
    assert {name: len(values) for name, values in samples.items()} == dict.fromkeys(rows, 12)


def test_accuracy_of_a_slow_board_stops_in_time(run, of_board, monkeypatch):
    original, now = RemoteModel.__call__, [0.0]

    def slow(self, inputs):
        now[0] += 1.0
        return original(self, inputs)

    monkeypatch.setattr(RemoteModel, "__call__", slow)
    # Each batch takes two seconds of this clock: one of the candidate, one of the untuned model.
    monkeypatch.setattr(compared_accuracy, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    result, _ = run(accuracy_time_s=3.0, **of_board)
    assert result.tags["tvmopt.accuracy_samples"] == "2 of 8: the board took 3 s for these"
    assert "on 2 samples" in result.changed[0]


def test_refused_library_is_an_error(run, of_board, broken_bundle):
    with pytest.raises(ArtifactError, match="board must load the library, but it refused it"):
        run(broken_bundle, **of_board)


def test_nonsense_is_not_timed(run, of_board, monkeypatch):
    monkeypatch.setattr(RemoteModel, "check_golden", lambda self, folder: 0.0)
    original = RemoteModel.__call__

    def negative(self, inputs):
        outputs = original(self, inputs)
        return outputs.of([-o for o in outputs], outputs.keys())

    monkeypatch.setattr(RemoteModel, "__call__", negative)
    monkeypatch.setattr(RemoteModel, "time", lambda *a: pytest.fail("was timed"))
    with pytest.raises(AccuracyError, match="its latency was not measured"):
        run(**of_board)


def test_no_such_board(run, of_board):
    with pytest.raises(ConfigError, match="but got 'pi5'"):
        run(**{**of_board, "rpc_key": "pi5"})


def test_without_a_board_the_reason_takes_the_place_of_the_numbers(run, monkeypatch):
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ("aarch64",))
    result, out = run()
    assert set(result.metrics) == {"library_bytes"}
    for name in ("latency_ms_p50", "accuracy", "golden_max_deviation", "peak_memory_mb"):
        reason = result.tags[f"tvmopt.unmeasured.{name}"]
        assert "this machine lacks aarch64" in reason
        assert "no rpc_tracker was given" in reason
    rows = read_table(out)
    assert {row["variant"] for row in rows} == {CANDIDATE, UNTUNED}
    assert {row["latency_ms_p50"] for row in rows} == {""}
    last = as_text(comparison(rows, {})).splitlines()[-1].split()
    assert last[1:4] == ["-", "-", "-"]

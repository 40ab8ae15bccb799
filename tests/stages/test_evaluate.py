"""The evaluate stage on a small model: accuracy, latency and the table."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tvmopt.errors import AccuracyError, ConfigError
from tvmopt.stages import evaluate_host, host_latency
from tvmopt.stages.comparison_table import CANDIDATE, REFERENCE, UNTUNED, read_table


@pytest.fixture(autouse=True)
def no_memory_child(monkeypatch):
    monkeypatch.setattr(evaluate_host, "measure_fresh_process", lambda *_: {"peak_memory_mb": 55.5})


@pytest.fixture
def run(evaluate_model):
    """Evaluate the session model with few repeats."""

    def few(data=None, bundles=None, **options):
        return evaluate_model(data, bundles, **{"repeats": 5, **options})

    return few


@pytest.fixture
def images():
    return np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32)


def test_metrics_without_data(run):
    result, _ = run()
    metrics = result.metrics
    assert result.tags["tvmopt.metric"] == "fidelity"
    assert "random inputs" in result.tags["tvmopt.data"]
    assert (metrics["accuracy"], metrics["accuracy_drop"]) == (1, 0)
    assert metrics["cosine"] == pytest.approx(1, abs=1e-5)
    assert metrics["max_abs_error"] < 1e-3
    assert metrics["peak_memory_mb"] == 55.5
    low, p50, high = (metrics[f"latency_ms_{name}"] for name in ("ci_low", "p50", "ci_high"))
    assert low <= p50 <= high
    assert metrics["throughput_per_s"] == pytest.approx(1e3 / metrics["latency_ms_p50"])
    assert metrics["speedup_vs_baseline"] == pytest.approx(
        metrics["baseline_latency_ms_p50"] / metrics["latency_ms_p50"]
    )
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("metric", "said"), [("auto", "top-1 agreement (Gemm"), ("float_r2", "R2 with the float model")]
)
def test_the_kind_of_fidelity_is_said(run, metric, said):
    result, _ = run(metric=metric)
    name = result.tags["tvmopt.metric"]
    assert result.tags["tvmopt.fidelity"].startswith(said)
    assert result.changed[1] == f"{name} is the {result.tags['tvmopt.fidelity']}"


def test_accuracy_against_labels_of_the_evaluation_part(run, images, conv_model):
    from tvmopt.frontend.reference import Reference

    reference = Reference(conv_model)
    labels = np.array([reference({"x": image[None]})[0].argmax() for image in images])
    result, _ = run({"x": images, "labels": labels})
    assert result.tags["tvmopt.metric"] == "top1"
    assert result.metrics["accuracy"] == result.metrics["reference_accuracy"] == 1
    assert "tvmopt.fidelity" not in result.tags
    assert "on 20 samples" in result.changed[0]  # 70% of 40


def test_max_samples(run, images):
    result, _ = run({"x": images}, max_samples=7)
    assert "on 7 samples" in result.changed[0]


def test_table_and_samples(run):
    _, out = run()
    rows = {row["variant"]: row for row in read_table(out)}
    assert set(rows) == {CANDIDATE, UNTUNED, REFERENCE}
    assert float(rows[REFERENCE]["speedup_vs_onnxruntime"]) == 1
    samples = json.loads((out / "latency_samples.json").read_text())
    assert {name: len(values) for name, values in samples.items()} == dict.fromkeys(rows, 5)
    for name, row in rows.items():
        assert float(row["latency_ms_p50"]) == pytest.approx(np.median(samples[name]))


def test_candidate_that_computes_something_else_is_not_timed(run, monkeypatch):
    from tvmopt.runtime import CompiledModel
    from tvmopt.runtime.outputs import Outputs

    original = CompiledModel.coded

    def reversed_outputs(self, inputs):
        outputs = original(self, inputs)
        return Outputs.of([-o for o in outputs], outputs.keys())

    monkeypatch.setattr(CompiledModel, "coded", reversed_outputs)
    monkeypatch.setattr(host_latency, "interleave", lambda *a: pytest.fail("was timed"))
    with pytest.raises(AccuracyError, match=r"cosine at least 0\.99.*its latency was not measured"):
        run()


def test_top1_without_labels(run, images):
    with pytest.raises(ConfigError, match="metric 'top1' needs labels"):
        run({"x": images}, metric="top1")


def test_a_reference_that_is_not_started_is_a_tag(run, monkeypatch):
    asked = []

    def measure(bundle, reference, threads):
        asked.append(reference)
        return {"peak_memory_mb": 55.5}

    monkeypatch.setattr(evaluate_host, "measure_fresh_process", measure)
    result, _ = run(starts_reference=False)
    assert asked == [None]
    assert "trial 0" in result.tags["tvmopt.unmeasured.baseline_cold_start_ms"]


def test_memory_that_cannot_be_measured_is_a_tag(run, monkeypatch):
    def fail(*_):
        raise OSError("no such page")

    monkeypatch.setattr(evaluate_host, "measure_fresh_process", fail)
    result, _ = run()
    assert "peak_memory_mb" not in result.metrics
    assert result.tags["tvmopt.unmeasured.peak_memory_mb"] == "no such page"

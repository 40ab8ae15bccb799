"""Skip sets by a metric of the user: it decides, and few samples are not taken for many."""

from __future__ import annotations

import dataclasses
import json
import math
import time

import numpy as np
import onnx
import pytest

from tvmopt.config import SensitivityConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch, Dataset
from tvmopt.evaluate.drop_interval import of_metric
from tvmopt.frontend.reference import Reference, input_specs
from tvmopt.metrics.metric import Metric, find_metric
from tvmopt.quantize import sensitivity
from tvmopt.quantize.bar import Bar, MeasuredAccuracy
from tvmopt.quantize.joint import Judge
from tvmopt.quantize.metric_drop import MetricDrop
from tvmopt.stages.sensitivity import SENSITIVITY_FILE
from tvmopt.stages.sensitivity import sensitivity as stage

BAR = Bar(max_drop=0.01)


@pytest.mark.parametrize(
    ("cosine", "drop", "samples", "interval", "holds"),
    [
        # Close outputs hold unless the metric clearly loses, or enough samples say so.
        (1.0, 0.0, 32, None, True),
        (1.0, 0.03, 32, (0.0, 0.09), True),
        (1.0, 0.03, 32, None, True),
        (1.0, 0.10, 32, (0.02, 0.2), False),
        (1.0, 0.03, 400, (0.0, 0.09), False),
        # Other outputs hold where the interval, of three standard errors, says so.
        (0.9, 0.001, 32, (0.000, 0.002), True),
        (0.9, 0.004, 32, (0.0, 0.0085), False),
        (0.9, 0.02, 32, (0.01, 0.03), False),
        (0.9, 0.0, 32, None, False),
        (0.9, 0.0, 32, (0.0, 0.0), False),
        (0.9, 0.0, 400, (0.0, 0.0), True),
        (0.9, -0.1, 32, (-0.2, -0.05), True),
        (0.9, -0.1, 32, (-0.2, -0.01), False),
    ],
)
def test_bar_of_a_metric(cosine, drop, samples, interval, holds) -> None:
    found = Accuracy("r2", 0.8 - drop, 0.8, None, cosine, 0.0, samples)
    assert BAR.holds_by_metric(MeasuredAccuracy(found, 0), "int8", lambda: interval) is holds


@pytest.mark.parametrize(
    ("drop", "high", "samples", "is_likely", "needed"),
    [
        (0.004, 0.0109, 64, True, 199),  # a standard error of 0.0035, of 0.0060 left
        (0.004, 0.0170, 64, False, 0),
        (0.012, 0.0130, 64, False, 0),
        (0.0, 0.0, 64, True, 65),  # no sample differs: 64 leave a drop of 0.003 open
        (0.0, 0.0, 8, False, 0),
    ],
)
def test_a_likely_drop_and_the_samples_that_would_decide(drop, high, samples, is_likely, needed):
    assert BAR.is_likely(drop, (-0.01, high), samples) is is_likely
    if is_likely:
        found = BAR.samples_to_decide(drop, (-0.01, high), samples, of_metric=True)
        assert found == needed
    assert not BAR.is_likely(drop, None, samples) and not Bar(0.0).is_likely(0, (0, 0), samples)


def test_scores_that_keep_their_class_are_close() -> None:
    found = MeasuredAccuracy(Accuracy("cer", 0.1, 0.1, None, 0.95, 0.0, 32), 0)
    assert not BAR.holds_by_metric(found, "int8", lambda: (0.0, 0.0))
    assert BAR.holds_by_metric(found, "int8", lambda: (0.0, 0.0), is_close=True)


@pytest.mark.parametrize(
    ("cosine", "drop", "interval", "holds"),
    [
        (1.0, 0.1, (0.0, 0.2), False),  # the evaluation refuses any drop above 0
        (1.0, 1e-6, None, False),
        (1.0, math.nan, None, False),
        (1.0, 0.0, (-0.1, 0.1), True),
        (1.0, -0.1, None, True),
        (0.9, 0.0, (-0.1, 0.1), False),
        (0.9, -0.1, (-0.15, -0.05), True),  # a gain that the samples show
        (0.9, -0.1, (-0.3, 0.1), False),
    ],
)
def test_without_an_allowed_drop_the_metric_must_not_lose(cosine, drop, interval, holds) -> None:
    found = MeasuredAccuracy(Accuracy("r2", 0.8 - drop, 0.8, None, cosine, 0.0, 400), 0)
    assert Bar(0.0).holds_by_metric(found, "int8", lambda: interval) is holds
    assert holds <= (found.accuracy.drop <= 0), "the evaluation would refuse it"


def test_drop_of_all_batches_in_any_order() -> None:
    labels = np.arange(6.0)
    batches = [Batch({}, labels[at : at + 2], 2) for at in (0, 2, 4)]
    expected = [[batch.labels[:, None] + 0.5] for batch in batches]
    drop = MetricDrop(find_metric("mean_absolute_error", "", ("y",)), batches, expected)
    kept = {at: drop.kept(at, [expected[at][0] + 0.25 * at]) for at in (2, 0, 1)}
    close = Accuracy("fidelity", 0.9, 1.0, None, 0.99, 0.1, 6)
    found = drop.accuracy(kept, close)
    assert (found.metric, found.reference) == ("mean_absolute_error", 0.5)
    assert (found.drop, found.cosine) == (pytest.approx(0.25), 0.99)
    low, high = drop.interval(kept)
    assert 0 <= low < 0.25 < high <= 0.5
    with pytest.raises(ConfigError, match="metric 'mean_absolute_error' needs labels"):
        MetricDrop(find_metric("mean_absolute_error", "", ("y",)), [Batch({}, None, 2)], expected)


@pytest.mark.parametrize(("seconds", "is_known"), [(0.004, True), (0.1, False)])
def test_a_slow_metric_is_resampled_as_often_as_an_interval_needs(monkeypatch, seconds, is_known):
    """At 0.1 s of time a metric of 4 ms has 25 resamples; fifty take 0.2 s."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def score(arrays, labels):
        now[0] += seconds / 2  # the two models
        return np.abs(arrays[0] - labels).mean()

    metric = Metric("own.py:error", False, lambda arrays, _: arrays, score)
    sides = [[[np.arange(8.0) + shift]] for shift in (0.5, 0.25)]
    found = of_metric(metric, *sides, np.arange(8.0), 0.1)
    assert (found is not None) is is_known
    assert now[0] <= 10 * 0.1 + seconds


@pytest.fixture(scope="module")
def regression(network):
    """Return ``network`` and samples whose labels are the float model's outputs."""
    model = network.model
    x = np.random.default_rng(0).standard_normal((24, 1, 3, 8, 8)).astype(np.float32)
    run = Reference(model)
    labels = np.stack([run({"x": one})[0] for one in x])[:, 0]
    return model, Dataset(input_specs(model), {"x": x}, labels, stacked=True)


def _scaled_error(scale):
    return Metric(
        "own.py:error", False, lambda arrays, _: arrays,
        lambda arrays, labels: scale * np.abs(arrays[0] - labels).mean(),
    )  # fmt: skip


def _analysed(regression, metric, **options):
    model, data = regression
    return sensitivity(
        model, data, dtypes=("int8",), samples=24, time_limit_s=30, metric=metric, **options
    )


def test_the_metric_decides_which_layers_are_skipped(regression) -> None:
    """An error in large units allows nothing but the float model, in small units all layers."""
    large = _analysed(regression, _scaled_error(1e6))
    assert len(large.proposed("int8")) == len(large.costs)
    assert large.settings["metric"] == "own.py:error"
    first = large.sets("int8")[0]
    assert first.drop > 0.01
    assert not first.holds
    assert _analysed(regression, _scaled_error(1e-6)).proposed("int8") == ()


def test_metric_that_fails_on_the_samples_is_said(regression) -> None:
    model, data = regression
    one_class = dataclasses.replace(data, labels=np.zeros(24, int))
    found = _analysed((model, one_class), find_metric("roc_auc", "", ("y",)))
    assert found.settings["metric"] == "fidelity"
    [note] = [note for note in found.notes if "judged by fidelity" in note]
    assert "metric roc_auc must" in note
    assert "24 samples" in note


def test_stage_passes_the_metric(regression, tmp_path) -> None:
    model, data = regression
    onnx.save(model, str(tmp_path / "model.onnx"))
    np.savez(tmp_path / "data.npz", x=data.arrays["x"][:, 0], labels=data.labels)
    target = resolve_target("", 1).to_dict()
    config = SensitivityConfig(
        "", target, ("bfloat16",), sensitivity_time=3, metric="mean_absolute_error"
    )
    out = tmp_path / "out"
    out.mkdir()
    result = stage(config, tmp_path / "model.onnx", out, lambda *_: None, tmp_path / "data.npz")
    saved = json.loads((out / SENSITIVITY_FILE).read_text())
    assert saved["settings"]["metric"] == "mean_absolute_error"
    assert "layers are judged by mean_absolute_error" in result.changed


def test_far_outputs_that_the_metric_prefers_hold_without_an_allowed_drop(make_model) -> None:
    """The cosine must not end a measurement that the metric decides."""
    nodes = [onnx.helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, {"x": ("float32", [2, 4])}, {"y": ("float32", [2, 4])}, {})
    rng = np.random.default_rng(0)
    batches = [Batch({"x": (x := rng.standard_normal((2, 4), "float32"))}, -x, 2)] * 16
    expected = [[batch.inputs["x"] + 1] for batch in batches]  # the float model's, far off
    judge = Judge(
        batches, expected, Bar(0.0), metric=find_metric("mean_absolute_error", "", ("y",))
    )
    verdict = judge(model, "int8", time.monotonic() + 30)
    assert verdict.accuracy.drop < 0 and verdict.holds

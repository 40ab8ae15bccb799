"""Verdicts of a converted model on few samples, by the drop that evaluation measures."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx import helper

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch, Dataset
from tvmopt.frontend import prepare
from tvmopt.frontend.class_scores import ClassScores
from tvmopt.frontend.reference import Reference
from tvmopt.quantize.bar import Bar, MeasuredAccuracy
from tvmopt.quantize.joint import Judge
from tvmopt.quantize.probe import noise_ratio
from tvmopt.quantize.sample_count import choose_samples, positions_of_fewer
from tvmopt.runtime.metadata import TensorSpec


@pytest.mark.parametrize(
    ("cosine", "batches", "max_drop", "drop", "interval", "holds"),
    [
        (0.9, 16, 0.01, 0.004, (0.003, 0.006), True),
        (1.0, 16, 0.01, 0.004, (0.001, 0.011), False),
        (1.0, 16, 0.01, 0.02, (0.019, 0.021), False),
        (1.0, 2, 0.01, 0.004, (0.003, 0.006), True),
        (0.9, 2, 0.01, 0.004, (0.003, 0.006), False),
        (1.0, 16, 0.01, 0.004, None, True),
        (1.0, 16, 0.0, 0.5, (0.4, 0.6), True),
        (0.9, 16, 0.0, 0.0, (0.0, 0.0), False),
    ],
)
def test_bar_of_a_mean(cosine, batches, max_drop, drop, interval, holds) -> None:
    found = Accuracy("fidelity", 1 - drop, 1.0, None, cosine, 0.0, batches)
    measured = MeasuredAccuracy(found, 0, (drop,) * batches, (1 - cosine,) * batches)
    assert Bar(max_drop).holds_by_mean(measured, "int8", drop, interval) is holds


def _affine(make_model, factor, offset, shape):
    """Return ``y = factor * x + offset``."""
    nodes = [
        helper.make_node("Mul", ["x", "f"], ["m"], "mul"),
        helper.make_node("Add", ["m", "o"], ["y"], "add"),
    ]
    constants = {"f": np.float32(factor).reshape(1), "o": np.float32(offset).reshape(1)}
    tensor = ("float32", shape)
    return prepare(make_model(nodes, {"x": tensor}, {"y": tensor}, constants), {}).model


def _judge(model, shape, scores, count=16, seed=0):
    rng = np.random.default_rng(seed)
    draws = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]
    batches = [Batch(inputs, None, 1) for inputs in draws]
    run = Reference(model)
    expected = [run(inputs) for inputs in draws]
    return Judge(batches, expected, Bar(0.01), class_scores=scores), expected, run, draws


def test_outputs_that_hardly_change_are_judged_by_their_change(make_model) -> None:
    """A large constant hides errors from the cosine, not from R²."""
    shape, none = (1, 4, 5), ClassScores(False, "boxes")
    exact = _affine(make_model, 1.0, 100.0, shape)
    judge, expected, _, draws = _judge(exact, shape, none)
    for factor, holds in ((0.7, False), (0.97, True)):
        model = _affine(make_model, factor, 100.0, shape)
        verdict = judge(model, "int8", time.monotonic() + 60)
        assert verdict.holds is holds
        assert verdict.accuracy.drop == pytest.approx((1 - factor) ** 2, rel=0.2)
        run = Reference(model)
        nearest = [noise_ratio(run(x)[0], want[0]) for x, want in zip(draws, expected, strict=True)]
        assert max(nearest) < 1e-3, "by the cosine, both hold"


def test_known_outputs_are_not_computed_again(make_model) -> None:
    """Of a wrong model, outputs that are said to be the float model's: only the others lose."""
    shape = (1, 4, 5)
    judge, expected, *_ = _judge(
        _affine(make_model, 1.0, 0.0, shape), shape, ClassScores(False, "")
    )
    outputs = {at: expected[at] for at in range(0, 16, 2)}
    wrong = _affine(make_model, 0.5, 1.0, shape)
    verdict = judge(wrong, "int8", time.monotonic() + 60, patient=True, outputs=outputs)
    assert sum(loss > 0.01 for loss in verdict.losses) == 8 and len(outputs) == 16
    assert judge.batch_s > 0


def test_fewer_samples_are_among_more() -> None:
    arrays = {"x": np.arange(50, dtype=np.float32).reshape(50, 1)}
    data = Dataset((TensorSpec("x", (1,), "float32"),), arrays, None, False)
    for more in (20, 50, 80):
        chosen = [choose_samples(data, count, seed=3).arrays["x"] for count in (7, more)]
        at = positions_of_fewer(data, 7, more, seed=3)
        assert chosen[1][at].tolist() == chosen[0].tolist()
    rows = Dataset((TensorSpec("x", (2,), "float32"),), arrays, None, False)
    assert positions_of_fewer(rows, 7, 20, seed=3) == []


def test_few_rows_of_scores_are_judged_by_their_errors(make_model) -> None:
    """48 rows agree by chance where one in fifty would not."""
    shape, scores = (1, 10), ClassScores(True, "scores")
    exact = _affine(make_model, 1.0, 0.0, shape)
    few, *_ = _judge(exact, shape, scores)
    assert few.by_closeness, "16 rows leave 1 % open"
    assert few(exact, "int8", time.monotonic() + 60).holds
    judge, *_ = _judge(exact, shape, scores, count=48)
    assert not judge.by_closeness
    assert judge(exact, "int8", time.monotonic() + 60).holds
    assert judge(_affine(make_model, 1.02, 0.0, shape), "int8", time.monotonic() + 60).holds

    def noisy(size):
        nodes = [
            helper.make_node("Mul", ["x", "k"], ["k0"], "large"),
            helper.make_node("Sin", ["k0"], ["k1"], "wave"),
            helper.make_node("Mul", ["k1", "s"], ["k2"], "small"),
            helper.make_node("Add", ["x", "k2"], ["y"], "add"),
        ]
        constants = {"k": np.float32([1e3]), "s": np.float32([size])}
        tensor = ("float32", shape)
        return prepare(make_model(nodes, {"x": tensor}, {"y": tensor}, constants), {}).model

    assert not judge(noisy(0.2), "int8", time.monotonic() + 60).holds
    assert judge(noisy(0.0005), "int8", time.monotonic() + 60).holds

"""Tests of the accuracy meter on hand-made outputs."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.compare import Tolerance
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.frontend.class_scores import ClassScores


def _scores(*classes, of=4):
    return np.eye(of, dtype=np.float32)[list(classes)]


def _meter(metric, labels, *batches):
    meter = AccuracyMeter(metric, labels)
    for batch in batches:
        meter.add(*batch)
    return meter.result()


def test_top1_against_labels():
    got = _meter(
        "top1", True,
        ([_scores(0, 1, 2)], [_scores(0, 1, 1)], np.array([0, 1, 1]), 3),
        ([_scores(3, 3)], [_scores(3, 2)], np.array([3, 2]), 2),
    )  # fmt: skip
    assert (got.metric, got.samples) == ("top1", 5)
    assert (got.accuracy, got.reference) == (3 / 5, 5 / 5)
    assert got.drop == pytest.approx(2 / 5)
    assert got.agreement == 3 / 5


def test_drop_is_negative_when_it_gained():
    got = _meter("top1", True, ([_scores(0)], [_scores(1)], np.array([0]), 1))
    assert got.drop == -1


def test_padding_does_not_count():
    outputs = _scores(0, 1, 2, 2), _scores(0, 1, 3, 3)
    top1 = _meter("top1", True, ([outputs[0]], [outputs[1]], np.array([0, 1]), 2, 2))
    assert (top1.accuracy, top1.reference, top1.agreement, top1.samples) == (1, 1, 1, 2)
    fidelity = _meter("fidelity", False, ([outputs[0]], [outputs[1]], None, 3, 1))
    assert fidelity.accuracy == pytest.approx(2 / 3)


def test_auto_takes_top1_when_there_are_labels():
    batch = ([_scores(0)], [_scores(1)], np.array([1]), 1)
    assert _meter("auto", True, batch).metric == "top1"
    assert _meter("auto", False, (*batch[:2], None, 1)).metric == "fidelity"


def test_fidelity_is_top1_agreement_for_scores():
    got = _meter("fidelity", True, ([_scores(0, 1)], [_scores(0, 2)], np.array([3, 3]), 2))
    assert (got.accuracy, got.reference, got.agreement) == (0.5, 1, 0.5)


def test_fidelity_is_r2_for_anything_else():
    want = np.array([3.0, 5.0], np.float32)
    got = _meter("fidelity", False, ([np.array([3.0, 4.5])], [want], None, 1))
    assert got.agreement is None
    assert got.accuracy == pytest.approx(1 - 0.125)  # mean square 0.125, variance over elements 1
    assert got.max_abs_error == pytest.approx(0.5)
    assert got.fidelity.startswith("R2 with the float model as the truth (the first output is no ")


@pytest.mark.parametrize(
    ("metric", "accuracy", "fidelity"),
    [
        ("fidelity", 0.5, "top-1 agreement (Gemm computes it), of it 0.0000 near ties of the"),
        ("agreement", 0.5, "top-1 agreement (as asked)"),
        ("float_r2", 0.0, "R2 with the float model as the truth (as asked)"),
    ],
)
def test_kind_of_fidelity_can_be_asked_for(metric, accuracy, fidelity):
    scores = ClassScores(True, "Gemm computes it", doubtful=True)
    meter = AccuracyMeter(metric, has_labels=True, class_scores=scores)
    meter.add([_scores(0, 1)], [_scores(0, 2)], np.array([0, 0]), 2)
    found = meter.result()
    assert (found.metric, found.accuracy, found.reference) == (metric, accuracy, 1.0)
    assert found.fidelity.startswith(fidelity)


def test_agreement_can_be_asked_of_what_seems_no_scores():
    meter = AccuracyMeter("agreement", False, class_scores=ClassScores(False, "no"))
    meter.add([_scores(0, 1)], [_scores(0, 2)], None, 2)
    assert meter.result().accuracy == 0.5
    with pytest.raises(
        ConfigError, match=r"needs a first output of shape .*got \(2, 1\); use metr"
    ):
        meter.add([np.zeros((2, 1))], [np.zeros((2, 1))], None, 2)


@pytest.mark.parametrize(
    ("doubtful", "columns", "kind"),
    [
        (True, (9.0, 0.0), "R2"),  # the first column is always the largest: not of classes
        (True, (0.0, 0.0), "top-1"),
        (False, (9.0, 0.0), "top-1"),
    ],
)
def test_columns_of_a_linear_layer_with_one_largest_are_no_classes(doubtful, columns, kind):
    values = np.random.default_rng(0).standard_normal((24, 2)) + columns
    found = []
    for rows in (19, 24):
        meter = AccuracyMeter("fidelity", False, class_scores=ClassScores(True, "y", doubtful))
        meter.add([values[:rows] + 0.1], [values[:rows]], None, rows)
        found.append(meter.result().fidelity)
    assert found[0].startswith("top-1")  # nineteen rows are too few to tell
    assert found[1].startswith(kind)


def test_classes_with_equal_float_scores_count_as_one():
    want = np.array([[0.5, 0.5 + 1e-7, 0.0], [0.5, 0.5 + 1e-3, 0.0]], np.float32)
    got = np.array([[0.6, 0.5, 0.0], [0.6, 0.5, 0.0]], np.float32)
    assert _meter("fidelity", False, ([got], [want], None, 2)).agreement == 0.5


@pytest.mark.parametrize(
    ("shape", "scores"),
    [((2, 4), True), ((2, 3, 4), True), ((2, 1), False), ((4,), False), ((2, 3, 4, 4), False)],
)
def test_which_outputs_are_tables_of_scores(shape, scores):
    output = np.random.default_rng(0).standard_normal(shape)
    found = _meter("fidelity", False, ([output], [output], None, 2))
    assert (found.agreement is not None) == scores
    assert found.accuracy == pytest.approx(1)


def test_scores_of_every_position_count():
    got = _meter("fidelity", False, ([_scores(0, 1, 2)[None]], [_scores(0, 1, 3)[None]], None, 1))
    assert got.accuracy == pytest.approx(2 / 3)


def test_worst_output_and_worst_batch_decide():
    good, bad = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    got = _meter(
        "fidelity", False, ([good, good], [good, bad], None, 1), ([good, good], [good] * 2, None, 1)
    )
    assert got.cosine == pytest.approx(np.sqrt(0.5))
    assert got.max_abs_error == 1


def test_shape_mismatch():
    meter = AccuracyMeter("fidelity", False)
    with pytest.raises(ConfigError, match=r"outputs must have shape \(1, 4\), but got \(2, 4\)"):
        meter.add([_scores(0, 1)], [_scores(0)], None, 1)


def test_missing_output():
    with pytest.raises(ValueError, match="longer than"):
        AccuracyMeter("fidelity", False).add([_scores(0)], [_scores(0)] * 2, None, 1)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([np.nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [np.nan, 1.0]),
        ([np.inf, 1.0], [1.0, 1.0]),
        ([np.inf, 1.0], [-np.inf, 1.0]),
        ([np.nan, 1.0], [np.inf, 1.0]),
    ],
)
def test_nan_or_infinity_on_one_side_is_the_worst_error(got, want):
    found = _meter("fidelity", False, ([np.array(got)], [np.array(want)], None, 1))
    assert found.cosine == 0
    assert found.accuracy == 0
    assert found.max_abs_error > 1e38
    assert np.isfinite(found.max_abs_error)


def test_nan_and_infinity_where_the_float_model_has_them_are_right():
    values = np.array([np.nan, np.inf, -np.inf, 2.0])
    found = _meter("fidelity", False, ([values], [values], None, 1))
    assert (found.cosine, found.max_abs_error) == (pytest.approx(1), 0)


def test_zeros():
    zeros, ones = np.zeros(3), np.ones(3)
    assert _meter("fidelity", False, ([zeros], [zeros], None, 1)).cosine == 1
    assert _meter("fidelity", False, ([ones], [zeros], None, 1)).cosine == 0
    assert _meter("fidelity", False, ([zeros], [ones], None, 1)).cosine == 0


def test_top1_needs_labels():
    with pytest.raises(ConfigError, match=r"metric 'top1' needs labels.*metric=fidelity"):
        AccuracyMeter("top1", has_labels=False)


@pytest.mark.parametrize(
    ("output", "labels"), [(np.zeros(4), np.zeros(1, int)), (_scores(0, 1), np.zeros(1, int))]
)
def test_top1_needs_a_row_of_scores_for_each_label(output, labels):
    meter = AccuracyMeter("top1", True)
    with pytest.raises(ConfigError, match=r"needs a first output of shape \(batch, classes\)"):
        meter.add([output], [output], labels, 2)


def test_rows_that_changed_places_are_equal():
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    meter = AccuracyMeter("fidelity", False, Tolerance(1e-3, "rows"))
    meter.add([boxes[None, [0, 2, 1]]], [boxes[None]], None, 1)
    result = meter.result()
    assert (result.accuracy, result.cosine, result.max_abs_error) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("wrong", "accuracy", "cosine"), [(1, 0.75, 1.0), (3, 0.25, 0.0)])
def test_batches_of_other_rows_do_not_agree(wrong, accuracy, cosine):
    """A row more, as where a score is at a threshold."""
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    meter = AccuracyMeter("fidelity", False, Tolerance(1e-3, "rows"))
    for batch in range(4):
        meter.add([boxes[: 2 if batch < wrong else 3]], [boxes], None, 1)
    result = meter.result()
    assert (result.accuracy, result.cosine) == (accuracy, cosine)
    with pytest.raises(ConfigError, match="outputs must have shape"):
        AccuracyMeter("fidelity", False).add([boxes[:2]], [boxes], None, 1)

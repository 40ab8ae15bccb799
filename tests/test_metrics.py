"""Metrics of accuracy: scikit-learn's by name, and functions of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.metrics.check import BUILT_IN, check_metric
from tvmopt.metrics.metric import find_metric
from tvmopt.metrics.named import NAMED
from tvmopt.metrics.own import file_of, is_own, with_whole_path

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 60)
SCORES = (np.eye(4)[LABELS] + RNG.standard_normal((60, 4))).astype(np.float32)


def _measured(text, outputs, labels, *, goal="", names=("y",), batch=7):
    """Return the accuracy of outputs with an error, by a meter that gets batches."""
    metric = find_metric(text, goal, names)
    meter = AccuracyMeter(metric, has_labels=True)
    for at in range(0, len(labels), batch):
        rows = slice(at, at + batch)
        part = [output[rows] for output in outputs]
        meter.add([-one for one in part], part, labels[rows], len(labels[rows]))
    return meter.result()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy", sklearn_metrics.accuracy_score(LABELS, SCORES.argmax(1))),
        ("f1", sklearn_metrics.f1_score(LABELS, SCORES.argmax(1), average="macro")),
        ("balanced_accuracy", sklearn_metrics.balanced_accuracy_score(LABELS, SCORES.argmax(1))),
        ("top2", sklearn_metrics.top_k_accuracy_score(LABELS, SCORES, k=2)),
    ],
)
def test_classes_of_scores(text, expected) -> None:
    found = _measured(text, [SCORES], LABELS)
    assert found.reference == pytest.approx(expected)
    assert found.metric == text
    assert found.drop > 0.1  # the model's scores have the wrong sign
    assert found.samples == 60


def test_area_under_the_curve() -> None:
    chances = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    expected = sklearn_metrics.roc_auc_score(LABELS, chances, multi_class="ovr")
    assert _measured("roc_auc", [SCORES], LABELS).reference == pytest.approx(expected)
    assert _measured("roc_auc", [chances], LABELS).reference == pytest.approx(expected)
    binary = (LABELS > 1).astype(int)
    margin = SCORES[:, 3] - SCORES[:, 0]
    expected = sklearn_metrics.roc_auc_score(binary, margin)
    pairs = np.stack([np.zeros(60), margin], 1)
    for output in (margin, margin[:, None], pairs):
        found = _measured("roc_auc", [output], binary)
        assert found.reference == pytest.approx(expected)
        assert found.accuracy == pytest.approx(1 - expected)


def test_classes_of_one_score_are_its_sign_or_half() -> None:
    labels = np.array([0, 1, 1, 0])
    logits = np.array([[-2.0], [3.0], [1.0], [-0.1]])
    chances = 1 / (1 + np.exp(-logits))
    for output in (logits, chances, labels):
        assert _measured("accuracy", [output], labels, batch=4).reference == 1.0


@pytest.mark.parametrize("axis", [1, 3])
def test_maps_of_classes(axis) -> None:
    maps = RNG.integers(0, 3, (6, 5, 4))
    scores = np.moveaxis(np.eye(3)[maps], -1, axis)
    wrong = scores.copy()
    wrong[0] = np.roll(wrong[0], 1, axis - 1)
    assert _measured("mean_iou", [scores], maps).reference == 1.0
    found = _measured("mean_iou", [wrong], maps).reference
    predicted = wrong.argmax(axis).reshape(-1)
    expected = sklearn_metrics.jaccard_score(maps.reshape(-1), predicted, average="macro")
    assert found == pytest.approx(expected)


def test_smaller_errors_are_better() -> None:
    values = RNG.standard_normal((20, 3))
    found = _measured("mean_absolute_error", [values + 0.5], values)
    assert found.reference == pytest.approx(0.5)
    assert not found.larger_is_better
    assert found.drop == pytest.approx(found.accuracy - 0.5)
    assert found.drop > 0
    column = values[:, :1]
    assert _measured("r2", [column], column[:, 0]).reference == 1.0


def test_one_of_several_outputs() -> None:
    outputs = [np.zeros((60, 7)), SCORES]
    found = _measured("accuracy@scores", outputs, LABELS, names=("boxes", "scores"))
    assert found.reference == pytest.approx((SCORES.argmax(1) == LABELS).mean())
    with pytest.raises(ConfigError, match=r"an output of the model \(boxes, scores\) after @"):
        find_metric("accuracy@other", "", ("boxes", "scores"))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_batches_do_not_matter(data) -> None:
    text = data.draw(st.sampled_from(["accuracy", "f1", "roc_auc", "top2"]))
    batch = data.draw(st.integers(1, 60))
    whole = _measured(text, [SCORES], LABELS, batch=60)
    parts = _measured(text, [SCORES], LABELS, batch=batch)
    assert parts.reference == pytest.approx(whole.reference)


# -- the user's own


@pytest.fixture
def own(tmp_path):
    """Return the text of a metric with the given body."""

    def write(body: str, name: str = "score") -> str:
        path = tmp_path / "own.py"
        path.write_text(f"import numpy as np\ndef {name}(outputs, labels):\n    {body}\n")
        return f"{path}:score"

    return write


def test_own_function_gets_all_outputs_and_labels(own) -> None:
    text = own("return np.abs(outputs - labels).max()")
    values = RNG.standard_normal((9, 2))
    found = _measured(text, [values + 0.25], values, goal="smaller")
    assert found.reference == pytest.approx(0.25)
    assert not found.larger_is_better
    text = own("return float((outputs['ids'] == labels).mean() + outputs['other'].size)")
    names = np.array(["a", "b", "c"])
    found = find_metric(text, "larger", ("ids", "other"))
    assert found([[names, np.zeros(3)]], np.array(["a", "b", "x"])) == pytest.approx(2 / 3 + 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return float('nan')", "must return a finite number, but returned nan for 60 samples"),
        ("return 'good'", "must return a number, but returned 'good'"),
        ("return None", "must return a number, but returned None"),
        ("raise ValueError('no\\n such')", "but it says in line 3: ValueError: no such"),
        ("return outputs['y']", "but it says in line 3: IndexError: only integers"),
    ],
)
def test_own_function_that_fails_is_one_line(own, body, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _measured(own(body), [SCORES], LABELS, goal="larger")
    assert "\n" not in str(caught.value)


def test_own_file_that_does_not_run(tmp_path, own) -> None:
    text = own("return 1", name="other")
    with pytest.raises(ConfigError, match=r"it has no 'score'; it has np, other"):
        find_metric(text, "larger", ("y",))
    (tmp_path / "own.py").write_text("import nothing_of_this_name")
    with pytest.raises(ConfigError, match=r"a file that runs, but .* ModuleNotFoundError: No m"):
        find_metric(text, "larger", ("y",))
    with pytest.raises(ConfigError, match="must name an existing file, but there is none at"):
        with_whole_path(f"{tmp_path}/gone.py:score")
    file = tmp_path / "bad.py"
    file.write_text("def score(:")
    with pytest.raises(ConfigError, match=r"a Python file, but '.*bad.py' says: invalid syntax"):
        with_whole_path(f"{file}:score")
    file.write_text("import os\nvalue = [1 for row in ()]\ndef other(): ...")
    with pytest.raises(ConfigError, match=r"it has no 'score'; it has os, other, row, value"):
        with_whole_path(f"{file}:score")
    for code in ("from os.path import *", "try:\n  import score\nexcept OSError: pass"):
        file.write_text(code)
        assert with_whole_path(f"{file}:score") == f"{file}:score"
    assert file_of(text) == tmp_path / "own.py"
    assert (file_of("f1"), with_whole_path("f1")) == (None, "f1")
    assert not is_own("own.txt:score")


# -- bad input


@pytest.mark.parametrize(
    ("text", "goal", "message"),
    [
        (
            "f2",
            "",
            r"must be one of auto, top1, fidelity, .*accuracy.*file.py:function, but got 'f2'",
        ),
        ("auto@y", "", "but got 'auto@y'"),
        ("own.py:score", "", "metric_goal must be larger or smaller for a metric of your own"),
        ("f1", "larger", "metric_goal is for a metric of your own, but metric is 'f1'"),
        ("auto", "smaller", "metric_goal is for a metric of your own, but metric is 'auto'"),
    ],
)
def test_wrong_names_are_refused(text, goal, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_metric(text, goal)


def test_good_names() -> None:
    for name in (*BUILT_IN, *NAMED, "f1@scores"):
        check_metric(name, "")
    assert all(find_metric(name, "", ("y",)) is None for name in BUILT_IN)


@pytest.mark.parametrize(
    ("text", "output", "labels", "message"),
    [
        ("accuracy", np.zeros((4, 3)), np.zeros((4, 2), int), "without its axis of classes"),
        ("r2", np.zeros((4, 3)), np.zeros(4), "a value for each of the output"),
        ("top5", np.zeros((4, 3)), np.zeros(4, int), "needs an output of more than 5 classes"),
        ("roc_auc", SCORES[:4], np.zeros(4, int), "metric roc_auc must .*but"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(text, output, labels, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _measured(text, [output], labels)
    assert "\n" not in str(caught.value)


def test_labels_are_needed() -> None:
    with pytest.raises(ConfigError, match="metric 'f1' needs labels, but the data holds none"):
        AccuracyMeter(find_metric("f1", "", ("y",)), has_labels=False)

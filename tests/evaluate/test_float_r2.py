"""R² with the float model's outputs as the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from sklearn.metrics import r2_score

from tvmopt.compare import cosine
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.float_r2 import FloatR2
from tvmopt.frontend.class_scores import ClassScores

RNG = np.random.default_rng(0)
NO_SCORES = ClassScores(False, "no softmax computes output 'y' last")


def _r2(actual, expected, batch=None):
    found = FloatR2()
    actual, expected = np.asarray(actual), np.asarray(expected)
    step = batch or max(1, len(expected))
    for at in range(0, len(expected), step):
        found.add(actual[at : at + step], expected[at : at + step])
    return found.value


@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_it_is_sklearns_r2_but_for_the_unbiased_variance(columns, batch) -> None:
    want = RNG.standard_normal((40, columns)) * [1.0, 9.0, 0.1, 3.0, 5.0][:columns] + 100
    got = want + 0.2 * RNG.standard_normal(want.shape)
    lost = 1 - r2_score(want, got, multioutput="variance_weighted")
    assert _r2(got, want, batch) == pytest.approx(1 - lost * 39 / 40)


def test_error_is_relative_to_what_varies() -> None:
    """The cosine is 1.0000, but all that the model says about a sample is lost."""
    want = 1000 + 2 * RNG.standard_normal((200, 1))
    got = np.full_like(want, 1000.0)
    assert cosine(got, want) > 0.99999
    assert _r2(got, want) < 0.01
    assert _r2(want + 0.2, want) == pytest.approx(0.99, abs=0.003)


def test_constant_element_adds_its_error_alone() -> None:
    want = np.stack([RNG.standard_normal(100), np.full(100, 5.0)], 1)
    assert _r2(want, want) == 1
    wrong = want + np.array([0.0, 0.1])
    expected = 1 - 0.1**2 / 2 / (want.var(axis=0, ddof=1).mean())
    assert _r2(wrong, want) == pytest.approx(expected)


def test_constant_output_is_relative_to_its_size() -> None:
    want = np.full((10, 3), 5.0)
    assert _r2(want * (1 + 1e-6), want) == pytest.approx(1, abs=1e-5)  # float32 rounds
    assert _r2(want * 1.01, want) == 0


def test_one_sample_varies_over_its_elements() -> None:
    want = np.array([[1.0, 2.0, 3.0]])
    assert _r2(want + 0.1, want) == pytest.approx(1 - 0.01 / (2 / 3))
    assert _r2([[9.0]], [[10.0]]) == pytest.approx(0.99)


def test_boxes_in_bfloat16_lose_nothing() -> None:
    """A detector's output: boxes on a grid that hardly move between images, and small scores."""
    grid = np.stack(np.meshgrid(np.arange(60), np.arange(35))).reshape(2, -1) * 10.0 + 20
    boxes = np.concatenate([grid, np.full((2, 2100), 40.0), np.full((18, 2100), 0.01)])
    for moves in (2.0, 15.0):
        want = np.tile(boxes, (8, 1, 1)).astype(np.float32)
        want[:, :4] += moves * RNG.standard_normal((8, 4, 2100)).astype(np.float32)
        got = want.astype(bfloat16).astype(np.float32)
        assert want.shape[1:] == (22, 2100)
        assert cosine(got, want) == pytest.approx(1, abs=5e-6)
        meter = AccuracyMeter("fidelity", False, class_scores=NO_SCORES)
        for at in range(8):
            meter.add([got[at : at + 1]], [want[at : at + 1]], None, 1)
        assert 0 < meter.result().drop < 0.005


@pytest.mark.parametrize(
    ("got", "want", "value"),
    [
        ([[np.nan, 1.0], [2.0, 3.0]], [[0.0, 1.0], [2.0, 3.0]], 0),
        ([[np.inf, 1.0], [2.0, 3.0]], [[np.nan, 1.0], [2.0, 3.0]], 0),
        ([[np.nan, 1.0], [2.0, 3.0]], [[np.nan, 1.0], [2.0, 3.0]], 1),
        ([[-np.inf, 1.0], [2.0, 3.0]], [[np.finfo(float).min, 1.0], [2.0, 3.0]], 1),
        ([[np.nan, 1.1], [2.0, 3.0]], [[np.nan, 1.0], [2.0, 3.0]], 1 - 0.01 / 3 / 2),
        ([[0.0], [0.0]], [[0.0], [0.0]], 1),
        ([[1e-9], [0.0]], [[0.0], [1e-8]], 1),  # rounding of larger values
        ([[1.0], [0.0]], [[0.0], [0.0]], 0),
        ([[1e300], [0.0]], [[-1e300], [0.0]], 0),  # squares past float64
        ([[3], [4]], [[3], [5]], 0.5),
        ([[True], [True]], [[True], [True]], 1),
        (np.zeros((2, 0)), np.zeros((2, 0)), 1),
    ],
)
def test_edges(got, want, value) -> None:
    """With one NaN of the float model, the other column has values 1 and 3 of variance 2."""
    assert _r2(got, want) == pytest.approx(value)


def test_samples_of_several_shapes() -> None:
    found = FloatR2()
    for length in (3, 4, 3, 4):
        want = RNG.standard_normal((1, length))
        found.add(want + 0.01, want)
    assert 0.99 < found.value < 1


def test_worst_output_decides_and_padding_does_not_count() -> None:
    want = RNG.standard_normal((6, 3))
    near, far = want + 0.01, want + 0.3
    near[4:] = far[4:] = 1e6
    meter = AccuracyMeter("fidelity", False, class_scores=NO_SCORES)
    meter.add([near, far], [want, want], None, 4, 2)
    found = meter.result()
    assert found.accuracy == pytest.approx(_r2(want[:4] + 0.3, want[:4]))
    assert found.fidelity == (
        "R2 with the float model as the truth, the least of 2 outputs "
        "(no softmax computes output 'y' last)"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4),
    st.floats(1e-2, 1e4), st.integers(1, 9),
)  # fmt: skip
def test_scale_and_batches_change_nothing(seed, samples, columns, scale, batch) -> None:
    rng = np.random.default_rng(seed)
    want = rng.standard_normal((samples, columns))
    got = want + 0.1 * rng.standard_normal(want.shape)
    plain = _r2(got, want)
    assert _r2(scale * got, scale * want, batch) == pytest.approx(plain, abs=1e-6)
    assert 0 <= plain <= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(1.01, 2))
def test_larger_errors_lose_more(seed, size, factor) -> None:
    rng = np.random.default_rng(seed)
    want, noise = rng.standard_normal((2, 20, 3))
    assert _r2(want + size * noise, want) >= _r2(want + factor * size * noise, want)

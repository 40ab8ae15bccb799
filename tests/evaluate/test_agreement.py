"""Near ties of the float model agree; nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from tvmopt.evaluate.agreement import Agreement, excess

RNG = np.random.default_rng(0)


def _of(actual, expected):
    found = Agreement()
    found.add(np.asarray(actual), np.asarray(expected))
    return found


def _planted(gap, rows=20):
    """Return scores of rows that are decided by 2, but the last, decided by ``gap``."""
    want = np.tile(np.array([0.0, 2.0, -1.0]), (rows, 1))
    want[-1, 0] = 2.0 - gap
    got = want.copy()
    got[-1, 0] = 3.0
    return got, want


@pytest.mark.parametrize(
    ("gap", "strict", "with_margin"),
    [(0.0, 1.0, 1.0), (0.05, 0.95, 1.0), (0.09, 0.95, 1.0), (0.11, 0.95, 0.95), (2.0, 0.95, 0.95)],
)
def test_planted_near_tie(gap, strict, with_margin) -> None:
    """The median gap is 2, so that classes nearer than 0.1 are nearly tied."""
    found = _of(*_planted(gap))
    assert (found.strict, found.with_margin) == (strict, with_margin)


def test_class_far_below_a_near_tie_does_not_agree() -> None:
    got, want = _planted(0.05)
    got[-1] = (0.0, 0.0, 1.0)
    assert _of(got, want).with_margin == 0.95


def test_strict_agreement_is_the_accuracy_of_the_same_classes() -> None:
    want, got = RNG.standard_normal((2, 200, 7))
    expected = accuracy_score(want.argmax(1), got.argmax(1))
    assert _of(got, want).strict == pytest.approx(expected)


def test_wrong_classes_everywhere_do_not_agree_by_the_margin() -> None:
    want = RNG.standard_normal((500, 10)) * 1e-3  # an untrained model: all chances are 0.1
    found = _of(np.roll(want, 1, axis=1), want)
    assert found.with_margin < found.strict + 0.05


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(-40, 40), st.floats(-100, 100))
def test_scale_and_shift_change_nothing(seed, exponent, shift) -> None:
    rng = np.random.default_rng(seed)
    want = rng.standard_normal((30, 4)).round(3)
    got = want + 0.3 * rng.standard_normal((30, 4))
    plain = _of(got, want)
    scaled = _of(got * 2.0**exponent, want * 2.0**exponent)
    assert scaled.strict == plain.strict
    assert scaled.with_margin == plain.with_margin
    assert _of(got + shift, want + shift).with_margin == pytest.approx(plain.with_margin, abs=0.04)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_batches_do_not_matter(seed, batch) -> None:
    rng = np.random.default_rng(seed)
    want = rng.standard_normal((30, 3, 4))
    got = want + 0.2 * rng.standard_normal(want.shape)
    whole, parts = _of(got, want), Agreement()
    for at in range(0, 30, batch):
        parts.add(got[at : at + batch], want[at : at + batch])
    assert (parts.with_margin, parts.strict) == (whole.with_margin, whole.strict)
    assert whole.with_margin >= whole.strict - 1e-12  # two ways to round the same share
    np.testing.assert_allclose(parts.losses(), whole.losses())
    assert excess(whole.losses().mean(axis=0)) == pytest.approx(1 - whole.with_margin)


@pytest.mark.parametrize(
    ("got", "want", "agrees"),
    [
        ([np.nan, 1.0], [0.0, 1.0], 0),
        ([0.0, np.nan], [0.0, 1.0], 0),
        ([np.nan, 1.0], [np.nan, 1.0], 1),
        ([0.0, 1.0], [np.nan, 1.0], 0),
        ([0.0, np.inf], [0.0, np.inf], 1),
        ([np.inf, 0.0], [0.0, np.inf], 0),
        ([0.0, 1.0], [-np.inf, 1.0], 1),
        ([1.0, 0.0], [-np.inf, 1.0], 0),
    ],
)
def test_nan_and_infinity(got, want, agrees) -> None:
    found = _of([got], [want])
    assert (found.strict, found.with_margin) == (agrees, agrees)


def test_single_row_has_no_margin_of_its_own() -> None:
    assert _of([[1.0, 0.0]], [[0.0, 0.01]]).with_margin == 0


def test_no_rows() -> None:
    found = _of(np.zeros((0, 3)), np.zeros((0, 3)))
    assert found.rows == 0
    assert not found.is_of_one_class(1)


def _undecided(rows=100):
    """Return scores of which every tenth row is decided by 0.2, a tenth of the median gap."""
    want = np.tile(np.array([0.0, 2.0, -1.0]), (rows, 1))
    want[::10, 0] = 1.8
    return want


@pytest.mark.parametrize(("changed", "excused"), [(0, 0.0), (2, 0.02), (4, 0.03), (10, 0.03)])
def test_half_of_the_float_models_own_changes_are_excused(changed, excused) -> None:
    want = _undecided()
    got, again = want.copy(), want.copy()
    got[: 10 * changed : 10, 0] = 3.0
    again[: 10 * 6 : 10, 0] = 3.0
    found = Agreement()
    found.add(got, want, [again, again])
    assert found.strict == pytest.approx(1 - changed / 100)
    assert found.own == pytest.approx(0.06)
    assert found.with_margin == pytest.approx(found.strict + excused)


def test_changes_of_decided_rows_are_never_excused() -> None:
    want = _undecided()
    got, again = want.copy(), want.copy()
    got[5::10, 0] = 3.0  # the float model prefers the second class by 2
    again[::10, 0] = again[5::10, 0] = 3.0
    found = Agreement()
    found.add(got, want, [again])
    assert found.with_margin == found.strict == pytest.approx(0.9)
    assert found.losses().mean(axis=0) == pytest.approx([0.1, 0.0, 0.1])


def test_random_classes_do_not_agree_however_unsure_the_float_model_is() -> None:
    want = RNG.standard_normal((1000, 10)) * 1e-3
    again = [want + RNG.standard_normal(want.shape) * 1e-3 for _ in range(2)]
    found = Agreement()
    found.add(RNG.standard_normal(want.shape), want, again)
    assert found.own > 0.02 and found.with_margin < 0.15

"""Tests of the search for skip sets, on layers with known losses."""

import time

import pytest

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.quantize.bar import Bar, MeasuredAccuracy, expected_tail
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.report import LayerCost, SkipSet, best
from tvmopt.quantize.skipsets import Ladder

BAR = Bar()
FOREVER = time.monotonic() + 1e6


def _accuracy(loss):
    return Accuracy("fidelity", 1 - loss, 1.0, None, 1 - loss, 0.0, 4)


def _ladder(layers):
    """Return a ladder over layers of (error, gain) with additive losses, and the sets it ran."""
    costs = [
        LayerCost(i, str(i), "Conv", "int8", "measured", error=2 * loss, gain=gain)
        for i, (loss, gain) in enumerate(layers)
    ]
    ran = []

    def convert(exclude):
        return [i for i in range(len(layers)) if str(i) not in exclude]

    def judge(converted, dtype, deadline, bar=None):
        ran.append(tuple(converted))
        accuracy = _accuracy(sum(layers[i][0] for i in converted))
        return JointVerdict(accuracy, (bar or BAR).holds(MeasuredAccuracy(accuracy, 4), dtype))

    return Ladder(costs, convert, judge, BAR), judge(convert(()), "int8", FOREVER), ran


def _search(layers, deadline=FOREVER):
    ladder, first, ran = _ladder(layers)
    ladder.climb(first, deadline)
    ladder.convert_again(deadline)
    ladder.insure(deadline)
    return best(ladder.sets).layers, ran


def test_nothing_is_skipped_where_nothing_is_lost():
    assert _search([(1e-5, 0.1)] * 8) == ((), [tuple(range(8))])


def test_the_one_bad_layer_is_skipped():
    layers = [(1e-5, 0.1)] * 20
    layers[13] = (0.5, 0.1)
    found, _ = _search(layers)
    assert found == (13,)


def test_many_small_layers_are_given_up_for_a_large_one():
    """Each of 30 small layers loses less than the large layer, and gains almost nothing."""
    layers = [(2e-3, 0.9), *[(1e-3, 0.001)] * 30]
    found, _ = _search(layers)
    assert 0 not in found
    assert len(found) >= 29


def test_a_little_gain_is_given_for_a_larger_cosine():
    """With layer 0 skipped, layer 1 passes; it causes most of the loss for 1% of the gain."""
    layers = [(0.5, 0.2), (1e-3, 0.01), *[(1e-6, 0.1)] * 8]
    found, ran = _search(layers)
    assert found == (0, 1)
    assert tuple(range(1, 10)) in ran


def test_no_set_is_measured_twice():
    layers = [(10.0**-i, 0.05 + 0.01 * (i % 3)) for i in range(1, 17)]
    _, ran = _search(layers)
    assert len(ran) == len(set(ran))


def test_without_time_the_float_model_is_proposed():
    found, ran = _search([(0.1, 0.1)] * 5, deadline=time.monotonic() - 1)
    assert found == (0, 1, 2, 3, 4)
    assert len(ran) == 1


def test_best_prefers_gain_then_cosine():
    def found(layers, gain, cosine, holds=True):
        return SkipSet("int8", layers, "measured", cosine, None, 0.0, gain, 4, holds)

    fast, near, slow = found((1,), 0.80, 0.992), found((1, 2), 0.78, 0.998), found((3,), 0.5, 1.0)
    assert best([fast, near, slow]) is near
    assert best([fast, slow, found((), 0.9, 0.5, holds=False)]) is fast
    nothing = found((), 0.81, 0.991)
    assert best([fast, near, slow, nothing]) is nothing


@pytest.mark.parametrize(
    ("losses", "tail"),
    [
        ([], 0.0),
        ([1e-3] * 3, 0.0),
        ([1e-3] * 8, 1e-3),
        ([0.0] * 8, 1e-9),
        # log10 losses of mean -4 and standard deviation 1: 2.326 deviations above the mean.
        ([10**-4.0 * 10**d for d in (-(2**0.5), 0, 2**0.5, 0) for _ in range(1000)], 10**-1.674),
    ],
)
def test_expected_tail(losses, tail):
    assert expected_tail(losses) == pytest.approx(tail, rel=2e-3)


def test_losses_that_spread_over_powers_of_ten_do_not_hold():
    accuracy = _accuracy(2e-3)
    alike = [2e-3 - 1e-4 * i for i in range(12)]
    spread = [2e-3 * 10 ** (-i / 3) for i in range(12)]
    assert BAR.holds(MeasuredAccuracy(accuracy, 12, losses=tuple(alike)), "int8")
    assert not BAR.holds(MeasuredAccuracy(accuracy, 12, losses=tuple(spread)), "int8")


def test_where_no_drop_is_allowed_the_cosine_decides():
    strict = Bar(max_drop=0)
    assert not strict.counts(10**9, 10**9)
    assert strict.holds(MeasuredAccuracy(_accuracy(2e-3), 10**9), "int8")
    assert not strict.holds(MeasuredAccuracy(_accuracy(5e-3), 10**9), "int8")


@pytest.mark.parametrize(
    ("wrong", "rows", "holds"),
    [(0, 299, False), (0, 300, True), (1, 480, True), (2, 480, False), (6, 1500, True)],
)
def test_a_drop_holds_with_its_standard_error(wrong, rows, holds):
    far = Accuracy("top1", 1 - wrong / rows, 1.0, 1 - wrong / rows, 0.5, 0.0, rows)
    assert BAR.holds(MeasuredAccuracy(far, rows), "int8") is holds


def test_rows_of_a_sample_err_together():
    """Ten wrong rows of 2,400 are weaker evidence in one sample than in ten samples."""
    far = Accuracy("fidelity", 1 - 10 / 2400, 1.0, 1 - 10 / 2400, 0.5, 0.0, 60)
    spread, together = [0.025] * 10 + [0.0] * 50, [0.25] + [0.0] * 59
    assert BAR.holds(MeasuredAccuracy(far, 2400, drops=tuple(spread)), "int8")
    assert not BAR.holds(MeasuredAccuracy(far, 2400, drops=tuple(together)), "int8")


@pytest.mark.parametrize(
    ("samples", "rows_each", "counts"),
    [(299, 1, False), (300, 1, True), (8, 40, False), (29, 40, False), (30, 40, True)],
)
def test_rows_of_few_samples_do_not_count(samples, rows_each, counts):
    """Eight samples of 40 right rows are weaker evidence than 320 right samples."""
    same = Accuracy("fidelity", 1.0, 1.0, 1.0, 0.5, 0.0, samples)
    rows = samples * rows_each
    assert BAR.counts(rows, samples) is counts
    assert BAR.holds(MeasuredAccuracy(same, rows, drops=(0.0,) * samples), "int8") is counts


def test_a_proposed_set_that_fails_on_all_samples_is_replaced():
    """Nothing was skipped, judged by few samples; on all of them layer 3 is too much."""
    layers = [(1e-5, 0.1)] * 6
    ladder, _, _ = _ladder(layers)

    def judge(converted, dtype, deadline, bar=None, patient=False):
        loss = 0.2 if 3 in converted else 1e-5
        accuracy = _accuracy(loss)
        holds = (bar or BAR).holds(MeasuredAccuracy(accuracy, 4), dtype)
        return JointVerdict(accuracy, holds, (loss,))

    ladder._judge = judge
    few = JointVerdict(_accuracy(1e-5), True)
    ladder.climb(few, FOREVER)
    assert best(ladder.sets).layers == ()
    assert best(ladder.sets).mean_loss is None
    ladder.confirm(time.monotonic() + 5)
    assert 3 in best(ladder.sets).layers


def test_a_proposed_set_that_fails_on_all_samples_at_the_deadline_leaves_the_float_model():
    layers = [(1e-5, 0.1)] * 3
    ladder, _, _ = _ladder(layers)
    deadline = time.monotonic() + 0.2

    def judge(converted, dtype, deadline, bar=None, patient=False):
        time.sleep(0.3)
        return JointVerdict(_accuracy(0.2), False)

    ladder._judge = judge
    ladder.climb(JointVerdict(_accuracy(1e-5), True), deadline)
    ladder.confirm(deadline)
    assert best(ladder.sets).layers == (0, 1, 2)

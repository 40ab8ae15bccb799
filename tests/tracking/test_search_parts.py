"""Parts of the end of a search: finalists, Pareto front, comparisons, the current champion."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracking.records import (
    CHOICES,
    DEFAULT,
    FAST,
    FAST_OPERATOR,
    META,
    META_OPERATOR,
    NHWC,
    SPACE,
    failed,
    final,
    finalist,
    record,
)
from tvmopt.errors import LimitError
from tvmopt.search.limits import HELDOUT_DROP
from tvmopt.search.records import Record
from tvmopt.search.space import BASELINE, Choice, Variant
from tvmopt.search.verdict import Finalist
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.report.sentences import verdict_words
from tvmopt.tracking.search.ending import champion_wins, compare_tuning, front_of
from tvmopt.tracking.search.finals import Final, choose_finalists
from tvmopt.tracking.search.granularity import compare_granularities
from tvmopt.tracking.search.trial import Rules
from tvmopt.tracking.store.allowance import BUDGET_SPENT, Stopwatch, TrialLimits


@st.composite
def studies(draw_from) -> list[Record]:
    choices = draw_from(st.lists(st.sampled_from(CHOICES), unique=True, max_size=10))
    records = [record(0, BASELINE, 5.0)]
    for number, choice in enumerate(choices, 1):
        ms = draw_from(st.floats(0.5, 4.0))
        is_exact = choice.variant.dtype == "float32"
        drop = 0.0 if is_exact else draw_from(st.sampled_from([0.0, 0.005, 0.02, 0.3]))
        mb, speed = draw_from(st.floats(0.1, 3.0)), draw_from(st.floats(0.8, 1.25))
        records.append(record(number, choice, ms, drop, mb, ms * speed))
    return records


@given(studies())
def test_finalists_hold_the_fastest_and_the_best_that_was_not_tuned(records) -> None:
    chosen = choose_finalists(records)
    feasible = [r for r in records[1:] if r.feasible]
    assert len({r.number for r in chosen}) == len(chosen) <= 8
    if feasible:
        assert chosen[0] == min(feasible, key=lambda r: r.values[0])
        assert min(feasible, key=lambda r: r.metrics["latency_ms_p50"]) in chosen
        assert {r.number for r in chosen} <= {r.number for r in feasible}
        least = min(r.metrics["accuracy_drop"] for r in feasible)
        assert least in {r.metrics["accuracy_drop"] for r in chosen}
        untuned = [r for r in feasible if r.choice.effort == DEFAULT]
        if untuned:
            assert min(untuned, key=lambda r: r.values[0]) in chosen
        best = chosen[0].choice.variant
        assert {r.number for r in feasible if r.choice.variant == best} <= {
            r.number for r in chosen
        }
        seen = min(feasible, key=lambda r: r.metrics["latency_ms_p50"])
        assert {r.number for r in feasible if r.choice.is_twin(seen.choice)} <= {
            r.number for r in chosen
        }
    elif len(records) > 1:
        least = min(r.violations["accuracy_drop"] for r in records[1:])
        assert [r.violations["accuracy_drop"] for r in chosen] == [least]
    else:
        assert chosen == []


@given(studies())
def test_nothing_feasible_beats_the_front_and_the_front_is_feasible(records) -> None:
    front = front_of(records)
    feasible = {r.number: r for r in records[1:] if r.feasible}
    assert set(front) <= set(feasible)
    assert bool(front) == bool(feasible)
    for number in front:
        one = feasible[number]
        assert not [
            r
            for r in feasible.values()
            if r.values[0] < one.values[0]
            and r.metrics["accuracy_drop"] < one.metrics["accuracy_drop"]
            and r.metrics["library_bytes"] < one.metrics["library_bytes"]
        ]


@pytest.mark.parametrize(
    ("theirs", "stays"),
    [(None, False), (finalist("c", 0.5), True), (finalist("c", 2.0), False),
     (finalist("c", 1.005, mb=0.5), True), (finalist("c", 0.995, mb=2.0), False)],
    ids=["none", "faster", "slower", "as fast, smaller", "as fast, larger"],
)  # fmt: skip
def test_the_champion_stays_when_it_would_win(theirs, stays) -> None:
    last = final([record(1, CHOICES[0], 1.0)], theirs)
    verdict = champion_wins(last, last.finalists[0])
    assert (verdict is not None) == stays
    if verdict is not None:
        words = verdict_words(verdict)
        assert "0.5" in words or "smallest library" in words


def test_tuned_trials_of_the_best_untuned_variant_are_measured_again() -> None:
    variant, other = Variant("float32", "", "NHWC"), Variant("float32", "", "NCHW")
    untuned = record(1, Choice(variant, DEFAULT), 1.0)
    unlucky = record(2, Choice(variant, FAST), 9.0)
    rest = record(3, Choice(other, DEFAULT), 2.0)
    assert [r.number for r in choose_finalists([untuned, unlucky, rest])] == [1, 2]


def test_the_most_accurate_trial_remains_where_held_out_samples_refuse_the_faster() -> None:
    lossy = [record(n, c, 1.0 + n / 1000, 0.009) for n, c in enumerate(CHOICES[:-1], 1)]
    exact = record(99, CHOICES[-1], 3.0, 0.0)
    assert choose_finalists([*lossy, exact])[-1] == exact


def test_float32_remains_where_held_out_samples_refuse_what_lost_nothing_before() -> None:
    """Skipped layers lose nothing on the evaluation samples, by chance; float32 never does."""
    lossy = [
        record(n, Choice(Variant("int8", "0" if n else "", "NHWC"), DEFAULT), 1.0 + n, drop)
        for n, drop in enumerate((0.0, -0.01))
    ]
    exact = record(9, Choice(Variant("float32", "", "NHWC"), DEFAULT), 5.0, 0.0)
    slower = record(10, Choice(Variant("float32", "", "NCHW"), DEFAULT), 6.0, 0.0)
    assert [r.number for r in choose_finalists([exact, *lossy, slower])] == [0, 1, 9]
    low = [choice for choice in CHOICES if choice.variant.dtype != "float32"]
    many = [record(n, c, 1.0 + n / 1000, 0.009) for n, c in enumerate(low, 20)]
    found = choose_finalists([*many, *lossy, exact])
    assert {r.number for r in found} >= {0, 1, 9} and len(found) <= 8


def test_what_held_out_samples_have_refused_is_no_finalist_in_any_layout() -> None:
    refused, elsewhere, other, exact = (
        record(n, Choice(Variant(dtype, "", layout), DEFAULT), 1.0 + n)
        for n, (dtype, layout) in enumerate(
            [("int8", "NHWC"), ("int8", "NCHW"), ("bfloat16", "NHWC"), ("float32", "NHWC")]
        )
    )
    refused = replace(refused, violations={HELDOUT_DROP: 0.5})
    found = choose_finalists([refused, elsewhere, other, exact])
    assert found == [other, exact]
    assert refused.tried is not None and refused.tried.inaccurate


def test_of_equal_drops_the_trial_with_the_least_deviation_remains() -> None:
    lossy = [record(n, c, 1.0 + n / 1000) for n, c in enumerate(CHOICES[:-1], 1)]
    lossy = [replace(r, metrics={**r.metrics, "mean_cosine_loss": 1e-3}) for r in lossy]
    close = record(99, CHOICES[-1], 3.0)
    close = replace(close, metrics={**close.metrics, "mean_cosine_loss": 1e-5})
    assert CHOICES[-1].variant.dtype == "int8" and close in choose_finalists([*lossy, close])


def _tuning(last: Final, winner: Finalist) -> str:
    return "".join(compare_tuning(last, winner))


def _granularities(winner: Record, records: list[Record], last: Final) -> str:
    return "".join(compare_granularities(winner, records, last))


def test_tuning_that_made_a_variant_slower_is_reported() -> None:
    variant = Variant("float32", "", "NHWC")
    records = [record(1, Choice(variant, DEFAULT), 1.0), record(2, Choice(variant, FAST), 2.0)]
    last = final(records)
    untuned, tuned = last.finalists
    assert "dearer tuning was no better here" in _tuning(last, untuned)
    assert _tuning(last, tuned) == "of the same variant: fast-20 2 ms, default 1 ms"
    alone = final([record(1, Choice(variant, DEFAULT), 1.0)])
    assert _tuning(alone, alone.finalists[0]) == ""


def test_a_costlier_granularity_counts_as_costlier_tuning() -> None:
    records = [
        record(1, Choice(NHWC, FAST_OPERATOR), 1.0),
        record(2, Choice(NHWC, FAST), 2.0),
    ]
    last = final(records)
    assert _tuning(last, last.finalists[0]) == (
        "of the same variant: fast-20-operator 1 ms, fast-20 2 ms; dearer tuning was no better "
        "here, so the cheaper is kept"
    )
    assert "dearer" not in _tuning(last, last.finalists[1])


def test_the_other_granularity_of_the_fastest_is_measured_again() -> None:
    others = [Choice(v, e) for v in SPACE.variants() if v != NHWC for e in (DEFAULT, META)]
    near = [record(n, c, 1.1 + n / 1000) for n, c in enumerate(others, 3)]
    records = [
        record(1, Choice(NHWC, FAST), 1.0),
        record(2, Choice(NHWC, FAST_OPERATOR), 9.0),
        *near,
    ]
    assert len(records) > 8
    assert {r.number for r in choose_finalists(records)} >= {1, 2}


@pytest.mark.parametrize(
    ("rival", "measured_again", "said"),
    [
        (None, True, "tuned by subgraph; by operator the same variant was not tried"),
        (record(2, Choice(NHWC, FAST_OPERATOR), 5.62), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.62 ms (3.9% slower)"),
        (record(2, Choice(NHWC, FAST_OPERATOR), 5.38), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.38 ms (0.6% faster, "
         "their intervals overlapping)"),
        (record(2, Choice(NHWC, FAST_OPERATOR), 5.411), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.411 ms (as fast, "
         "their intervals overlapping)"),
        (record(2, Choice(NHWC, FAST_OPERATOR), 5.62, adjusted=8.0), False,
         "tuned by subgraph: 6 ms; by operator the same variant took 8 ms (33.3% slower, "
         "measured in their trials)"),
        (record(2, Choice(NHWC, META_OPERATOR), 5.62), True,
         "tuned by subgraph: 5.41 ms; by operator (metaschedule-64-operator) the same variant "
         "took 5.62 ms (3.9% slower)"),
        (record(2, Choice(NHWC, FAST_OPERATOR), 3.0, drop=0.02), False,
         "tuned by subgraph: 6 ms; by operator the same variant took 3 ms (50.0% faster, "
         "measured in their trials), and is not feasible: accuracy_drop 100% over its limit"),
        (failed(2, Choice(NHWC, FAST_OPERATOR), "timeout"), False,
         "tuned by subgraph; by operator the same variant has no latency: its trial failed "
         "(timeout)"),
    ],
    ids=["untried", "slower", "faster", "equal", "trials", "other effort", "infeasible", "failed"],
)  # fmt: skip
def test_the_end_says_what_the_other_granularity_took(rival, measured_again, said) -> None:
    winner = record(1, Choice(NHWC, FAST), 5.41, adjusted=6.0)
    elsewhere = record(3, Choice(Variant("int8", "", "NHWC"), FAST_OPERATOR), 1.0)
    untuned = record(4, Choice(NHWC, DEFAULT), 7.0)
    records = [winner, elsewhere, untuned, *([rival] if rival else [])]
    last = [winner, *([rival] if rival and measured_again else [])]
    finalists = tuple(finalist(f"trial {r.number}", r.metrics["latency_ms_p50"]) for r in last)
    final_round = Final(finalists, {f"trial {r.number}": r for r in last}, 2.0, None, "run")
    assert _granularities(winner, records, final_round) == said
    assert _granularities(untuned, records, final_round) == ""


def test_the_report_compares_granularities_at_the_same_effort() -> None:
    winner = record(1, Choice(NHWC, META_OPERATOR), 2.0)
    records = [winner, record(2, Choice(NHWC, FAST), 1.9), record(3, Choice(NHWC, META), 3.0)]
    words = _granularities(winner, records, final(records))
    assert words == (
        "tuned by operator: 2 ms; by subgraph the same variant took 3 ms (50.0% slower)"
    )
    records[2] = failed(3, Choice(NHWC, META), "crash")
    words = _granularities(winner, records, final(records[:2]))
    assert words == (
        "tuned by operator: 2 ms; by subgraph (fast-20) the same variant took 1.9 ms (5.0% faster)"
    )


def test_latencies_are_compared_at_the_machines_speed_of_trial_zero() -> None:
    metrics = {"latency_ms_p50": 3.0, "baseline_latency_ms_p50": 6.0, "accuracy_drop": 0.1,
               "library_bytes": 5.0}  # fmt: skip
    rules = Rules(None, ("latency", "library_bytes", "accuracy_drop"), 5.0)
    assert rules.values(metrics) == pytest.approx([2.5, 5.0, 0.1])
    # A slow-down of one runtime by that much is no change of the machine's speed.
    for reference, expected in ((1.0, 2.4), (60.0, 3.75)):
        found = replace(rules, reference_ms=reference).values(metrics)[0]
        assert found == pytest.approx(expected)
    assert replace(rules, reference_ms=None).values(metrics)[0] == 3.0


def test_a_stage_gets_its_own_limit_or_what_is_left_of_the_budget() -> None:
    left = [100.0]
    limits = TrialLimits(30.0, 500.0, lambda: left[0])
    assert limits.allow() == Allowance(30.0, 500.0)
    assert TrialLimits(0.0, 500.0, lambda: float("inf")).allow() == Allowance(0.0, 500.0)
    left[0] = 7.0
    assert limits.allow() == Allowance(7.0, 500.0)
    hung = LimitError("it hung", "timeout")
    assert limits.explain(hung) is hung
    left[0] = 0.0
    # The budget ended it, which is no evidence about the trial.
    assert limits.explain(hung).failure_class == BUDGET_SPENT
    assert limits.explain(LimitError("", "out_of_memory")).failure_class == "out_of_memory"
    with pytest.raises(LimitError, match="has spent its time_budget") as caught:
        limits.allow()
    assert caught.value.failure_class == BUDGET_SPENT


def test_untuned_tvm_takes_a_share_of_the_budget() -> None:
    left = [2000.0]
    now = time.monotonic()
    of_baseline = TrialLimits(1200.0, 500.0, lambda: left[0], 2000.0, is_baseline=True, began=now)
    assert of_baseline.allow().seconds == pytest.approx(120.0, abs=1.0)
    assert replace(of_baseline, budget_s=480.0).allow().seconds == pytest.approx(30.0, abs=1.0)
    assert replace(of_baseline, budget_s=0.0).allow().seconds == 1200.0
    assert replace(of_baseline, seconds=5.0).allow().seconds == 5.0
    # all stages together
    assert replace(of_baseline, began=now - 100).allow().seconds == pytest.approx(20.0, abs=1.0)
    with pytest.raises(LimitError) as none_left:
        replace(of_baseline, began=now - 130).allow()
    hung = LimitError("a stage took too long", "timeout")
    assert of_baseline.explain(hung) is hung
    for error in (hung, none_left.value):
        said = replace(of_baseline, began=now - 120).explain(error)
        assert said.failure_class == "timeout"
        assert "untuned TVM may take 120 s of the time_budget of 2000 s" in str(said)
    left[0] = 0.0
    assert of_baseline.explain(said).failure_class == BUDGET_SPENT


def test_a_budget_includes_earlier_work() -> None:
    assert Stopwatch(100.0, 30.0).left() == pytest.approx(70.0, abs=1.0)
    assert Stopwatch(100.0, 130.0).left() < 0
    assert Stopwatch(0.0, 1e9).left() == float("inf")

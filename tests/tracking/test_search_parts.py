"""Parts of a search report: finalists, Pareto front, table, HTML page, the current champion."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import LimitError
from tvmopt.search.effort import Effort
from tvmopt.search.records import Record
from tvmopt.search.space import BASELINE, Choice, Space, Variant
from tvmopt.search.verdict import Finalist
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.allowance import BUDGET_SPENT, Stopwatch, TrialLimits
from tvmopt.tracking.finals import Final, choose_finalists
from tvmopt.tracking.search_end import champion_words, front_of, tuning_words
from tvmopt.tracking.search_granularity import granularity_words
from tvmopt.tracking.search_page import page
from tvmopt.tracking.search_plots import draw
from tvmopt.tracking.search_table import COLUMNS, as_csv, narrow, table
from tvmopt.tracking.trial import ADJUSTED, Rules

DEFAULT, FAST, META = Effort("default"), Effort("fast", 20), Effort("metaschedule", 64)
FAST_OPERATOR, META_OPERATOR = (replace(e, granularity="operator") for e in (FAST, META))
SPACE = Space(
    ("float32", "int8"), {"int8": ("", "0")}, ("NHWC", "NCHW"),
    (DEFAULT, FAST_OPERATOR, FAST, META_OPERATOR, META),
)  # fmt: skip
CHOICES = [Choice(v, e) for v in SPACE.variants() for e in SPACE.efforts]


def _record(
    number: int, choice: Choice, ms: float, drop: float = 0.0, mb: float = 1.0, adjusted: float = 0
) -> Record:
    metrics = {
        "latency_ms_p50": ms, "latency_ms_ci_low": 0.99 * ms, "latency_ms_ci_high": 1.01 * ms,
        ADJUSTED: adjusted or ms, "baseline_latency_ms_p50": 2.0, "speedup_vs_baseline": 2.0 / ms,
        "accuracy_drop": drop, "library_bytes": mb * 1e6,
    }  # fmt: skip
    passed = {"accuracy_drop": (drop - 0.01) / 0.01}
    values, run = (adjusted or ms,), f"run{number}"
    return Record(number, choice, "finished", run, metrics, passed, values, "", "", {}, 10.0)


def _failed(number: int, choice: Choice, failure: str) -> Record:
    return Record(number, choice, "failed", "", {}, {}, (), failure, "it broke", {}, 1.0)


@st.composite
def studies(draw_from) -> list[Record]:
    choices = draw_from(st.lists(st.sampled_from(CHOICES), unique=True, max_size=10))
    records = [_record(0, BASELINE, 5.0)]
    for number, choice in enumerate(choices, 1):
        ms = draw_from(st.floats(0.5, 4.0))
        drop = draw_from(st.sampled_from([0.0, 0.005, 0.02, 0.3]))
        mb, speed = draw_from(st.floats(0.1, 3.0)), draw_from(st.floats(0.8, 1.25))
        records.append(_record(number, choice, ms, drop, mb, ms * speed))
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


def _finalist(label: str, ms: float, mb: float = 1.0) -> Finalist:
    return Finalist(label, ms, 0.99 * ms, 1.01 * ms, 0.0, mb * 1e6)


def _final(records: list[Record], champion: Finalist | None = None) -> Final:
    finalists = tuple(_finalist(f"trial {r.number}", r.values[0]) for r in records)
    return Final(finalists, {f"trial {r.number}": r for r in records}, 2.0, champion, "run")


@pytest.mark.parametrize(
    ("theirs", "stays"),
    [(None, False), (_finalist("c", 0.5), True), (_finalist("c", 2.0), False),
     (_finalist("c", 1.005, mb=0.5), True), (_finalist("c", 0.995, mb=2.0), False)],
    ids=["none", "faster", "slower", "as fast, smaller", "as fast, larger"],
)  # fmt: skip
def test_the_champion_stays_when_it_would_win(theirs, stays) -> None:
    final = _final([_record(1, CHOICES[0], 1.0)], theirs)
    words = champion_words(final, final.finalists[0])
    assert bool(words) == stays
    if stays:
        assert "0.5" in words or "smallest library" in words


def test_tuned_trials_of_the_best_untuned_variant_are_measured_again() -> None:
    variant, other = Variant("float32", "", "NHWC"), Variant("float32", "", "NCHW")
    untuned = _record(1, Choice(variant, DEFAULT), 1.0)
    unlucky = _record(2, Choice(variant, FAST), 9.0)
    rest = _record(3, Choice(other, DEFAULT), 2.0)
    assert [r.number for r in choose_finalists([untuned, unlucky, rest])] == [1, 2]


def test_tuning_that_made_a_variant_slower_is_reported() -> None:
    variant = Variant("float32", "", "NHWC")
    records = [_record(1, Choice(variant, DEFAULT), 1.0), _record(2, Choice(variant, FAST), 2.0)]
    final = _final(records)
    untuned, tuned = final.finalists
    assert "dearer tuning was no better here" in tuning_words(final, untuned)
    assert tuning_words(final, tuned) == "of the same variant: fast-20 2 ms, default 1 ms"
    alone = _final([_record(1, Choice(variant, DEFAULT), 1.0)])
    assert tuning_words(alone, alone.finalists[0]) == ""


NHWC = Variant("float32", "", "NHWC")


def test_a_costlier_granularity_counts_as_costlier_tuning() -> None:
    records = [
        _record(1, Choice(NHWC, FAST_OPERATOR), 1.0),
        _record(2, Choice(NHWC, FAST), 2.0),
    ]
    final = _final(records)
    assert tuning_words(final, final.finalists[0]) == (
        "of the same variant: fast-20-operator 1 ms, fast-20 2 ms; dearer tuning was no better "
        "here, so the cheaper is kept"
    )
    assert "dearer" not in tuning_words(final, final.finalists[1])


def test_the_other_granularity_of_the_fastest_is_measured_again() -> None:
    others = [Choice(v, e) for v in SPACE.variants() if v != NHWC for e in (DEFAULT, META)]
    near = [_record(n, c, 1.1 + n / 1000) for n, c in enumerate(others, 3)]
    records = [
        _record(1, Choice(NHWC, FAST), 1.0),
        _record(2, Choice(NHWC, FAST_OPERATOR), 9.0),
        *near,
    ]
    assert len(records) > 8
    assert {r.number for r in choose_finalists(records)} >= {1, 2}


@pytest.mark.parametrize(
    ("rival", "measured_again", "said"),
    [
        (None, True, "tuned by subgraph; by operator the same variant was not tried"),
        (_record(2, Choice(NHWC, FAST_OPERATOR), 5.62), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.62 ms (3.9% slower)"),
        (_record(2, Choice(NHWC, FAST_OPERATOR), 5.38), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.38 ms (0.6% faster, "
         "their intervals overlapping)"),
        (_record(2, Choice(NHWC, FAST_OPERATOR), 5.411), True,
         "tuned by subgraph: 5.41 ms; by operator the same variant took 5.411 ms (as fast, "
         "their intervals overlapping)"),
        (_record(2, Choice(NHWC, FAST_OPERATOR), 5.62, adjusted=8.0), False,
         "tuned by subgraph: 6 ms; by operator the same variant took 8 ms (33.3% slower, "
         "measured in their trials)"),
        (_record(2, Choice(NHWC, META_OPERATOR), 5.62), True,
         "tuned by subgraph: 5.41 ms; by operator (metaschedule-64-operator) the same variant "
         "took 5.62 ms (3.9% slower)"),
        (_record(2, Choice(NHWC, FAST_OPERATOR), 3.0, drop=0.02), False,
         "tuned by subgraph: 6 ms; by operator the same variant took 3 ms (50.0% faster, "
         "measured in their trials), and is not feasible: accuracy_drop 100% over its limit"),
        (_failed(2, Choice(NHWC, FAST_OPERATOR), "timeout"), False,
         "tuned by subgraph; by operator the same variant has no latency: its trial failed "
         "(timeout)"),
    ],
    ids=["untried", "slower", "faster", "equal", "trials", "other effort", "infeasible", "failed"],
)  # fmt: skip
def test_the_end_says_what_the_other_granularity_took(rival, measured_again, said) -> None:
    winner = _record(1, Choice(NHWC, FAST), 5.41, adjusted=6.0)
    elsewhere = _record(3, Choice(Variant("int8", "", "NHWC"), FAST_OPERATOR), 1.0)
    untuned = _record(4, Choice(NHWC, DEFAULT), 7.0)
    records = [winner, elsewhere, untuned, *([rival] if rival else [])]
    last = [winner, *([rival] if rival and measured_again else [])]
    finalists = tuple(_finalist(f"trial {r.number}", r.metrics["latency_ms_p50"]) for r in last)
    final = Final(finalists, {f"trial {r.number}": r for r in last}, 2.0, None, "run")
    assert granularity_words(winner, records, final) == said
    assert granularity_words(untuned, records, final) == ""


def test_the_report_compares_granularities_at_the_same_effort() -> None:
    winner = _record(1, Choice(NHWC, META_OPERATOR), 2.0)
    records = [winner, _record(2, Choice(NHWC, FAST), 1.9), _record(3, Choice(NHWC, META), 3.0)]
    words = granularity_words(winner, records, _final(records))
    assert words == (
        "tuned by operator: 2 ms; by subgraph the same variant took 3 ms (50.0% slower)"
    )
    records[2] = _failed(3, Choice(NHWC, META), "crash")
    words = granularity_words(winner, records, _final(records[:2]))
    assert words == (
        "tuned by operator: 2 ms; by subgraph (fast-20) the same variant took 1.9 ms (5.0% faster)"
    )


RECORDS = [
    _record(0, BASELINE, 5.0),
    _record(1, CHOICES[0], 1.0),
    _record(2, CHOICES[1], 0.5, drop=0.3),
    _failed(3, CHOICES[2], "timeout"),
    _failed(4, CHOICES[3], "orphaned"),
    _record(5, CHOICES[4], 0.9),
    _record(6, CHOICES[5], 0.8),
]


def test_the_table_has_every_trial_that_says_something() -> None:
    cells = table(RECORDS, winner=6, finals=[(1, 0.7, 0.69, 0.71), (6, 0.75, 0.74, 0.76)])
    assert cells[0] == list(COLUMNS)
    assert {len(row) for row in cells} == {len(COLUMNS)}
    status = {row[0]: row[1] for row in cells[1:]}
    assert status == {
        "6": "winner", "5": "feasible", "1": "feasible", "2": "not feasible", "0": "baseline",
        "3": "FAILED (timeout)",
    }  # fmt: skip
    assert [row[0] for row in cells[1:4]] == ["6", "1", "5"]
    assert cells[2][cells[0].index("final 95% interval")] == "0.69 - 0.71"
    assert cells[-1][-1] == "it broke"
    column = cells[0].index("granularity")
    effort = cells[0].index("effort")
    tried = {row[effort]: row[column] for row in cells[1:]}
    assert tried == {
        "none": "subgraph", "default": "subgraph", "fast-20-operator": "operator",
        "fast-20": "subgraph", "metaschedule-64": "subgraph",
    }  # fmt: skip
    assert list(csv.reader(io.StringIO(as_csv(cells)))) == cells
    assert {len(row) for row in narrow(cells)} == {11}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_page_shows_all_and_escapes_what_it_was_given(tmp_path) -> None:
    missing = draw(RECORDS, SPACE, (5, 6), 6, tmp_path)
    assert missing == []
    pictures = sorted(tmp_path.glob("*.png"))
    assert [p.stem for p in pictures] == ["history", "importances", "pareto"]
    evil = [replace(RECORDS[3], error="<script>alert(1)</script>"), *RECORDS]
    text = page("a & b", ["x < y"], {"model": "<m>"}, table(evil, 6), pictures)
    tags = _Tags()
    tags.feed(text)
    names = [name for name, _ in tags.seen]
    assert "script" not in names and names.count("img") == 3 and names.count("tr") == 8
    assert [a.get("class") for n, a in tags.seen if n == "tr"].count("winner") == 1
    assert "a &amp; b" in text and "x &lt; y" in text


def test_plots_without_data_are_reported(tmp_path) -> None:
    assert draw([RECORDS[3]], SPACE, (), -1, tmp_path) == [
        "no trial finished, so there is nothing to draw",
        "parameter importances are left out: 4 finished trials are needed, but there are 0",
    ]
    assert list(tmp_path.iterdir()) == []


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


def test_a_budget_includes_earlier_work() -> None:
    assert Stopwatch(100.0, 30.0).left() == pytest.approx(70.0, abs=1.0)
    assert Stopwatch(100.0, 130.0).left() < 0
    assert Stopwatch(0.0, 1e9).left() == float("inf")

"""Sentences of reports: pure functions from data to text."""

from __future__ import annotations

import dataclasses

import pytest

from tests.tracking.records import CHOICES, FAST, FAST_OPERATOR, finalist, record
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.search.verdict import choose
from tvmopt.tracking.report import sentences


def test_the_fastest_is_compared_with_the_next() -> None:
    slow, fast = finalist("a", 2.0, half=0.05), finalist("b", 1.0, half=0.1)
    assert sentences.verdict_words(choose([slow, fast])) == (
        "b is the fastest: p50 1 ms (0.9 to 1.1), against 2 ms (1.9 to 2.1) of a, the next"
    )
    only = choose([fast])
    assert sentences.verdict_words(only) == "b is the fastest: p50 1 ms (0.9 to 1.1)"


@pytest.mark.parametrize(
    ("other", "end"),
    [
        ({"accuracy_drop": 0.1}, "fast loses the least accuracy (+0.0000)"),
        ({"library_bytes": 2e6}, "fast has the smallest library (1.00 MB)"),
        ({}, "fast has the smallest median, accuracy and size being the same"),
    ],
    ids=["accuracy", "size", "median"],
)
def test_what_decided_among_equals_is_said(other, end) -> None:
    equal = [dataclasses.replace(finalist("near", 1.01), **other), finalist("fast", 1.0)]
    assert sentences.verdict_words(choose(equal)) == (
        "equally fast, their intervals overlapping: fast (1 ms (0.99 to 1.01)), "
        f"near (1.01 ms (0.9999 to 1.02)); {end}"
    )


def test_the_winner_is_compared_with_onnx_runtime() -> None:
    assert sentences.winner_lines(choose([finalist("trial 1", 0.5)]), CHOICES[0], 2.0) == [
        f"trial 1 is the fastest: p50 0.5 ms (0.495 to 0.505) ({CHOICES[0]})",
        "ONNX Runtime float32 had p50 2 ms in the same round: trial 1 is 4 times as fast",
    ]


def test_exceeded_limits_are_listed_with_their_excess() -> None:
    found = {"accuracy_drop": 1.0, "library_mb": 0.5, "memory_mb": -0.1, "p99_ms": 1.0}
    assert sentences.limit_words(found) == (
        "accuracy_drop 100% over its limit, library_mb 50% over its limit, "
        "p99_ms 100% over its limit"
    )
    assert sentences.limit_words({"accuracy_drop": -0.5}) == ""


def test_a_trial_that_exceeds_a_limit_is_not_feasible() -> None:
    text = "p50 1 ms, 2x of ONNX Runtime (2 ms), accuracy drop +0.0200"
    assert sentences.trial_words(1.0, 2.0, 2.0, 0.02, {"accuracy_drop": -1.0}) == text
    assert sentences.trial_words(1.0, 2.0, 2.0, 0.02, {"accuracy_drop": 1.0}) == (
        f"{text}: not feasible, accuracy_drop 100% over its limit"
    )


def test_a_search_without_a_feasible_trial_names_the_least_violating_one() -> None:
    one = record(7, CHOICES[0], 1.0, drop=0.02)
    untried = sentences.untried_words("subgraph", "operator")
    assert sentences.infeasible_lines(one, [untried], "3") == [
        f"no trial keeps to its limits; trial 7 ({one.choice}) passes them least: accuracy_drop "
        "100% over its limit",
        "tuned by subgraph; by operator the same variant was not tried",
        "registered as version 3 with the tag feasible=false, not promoted",
    ]
    assert len(sentences.infeasible_lines(one, [], "3")) == 2


ACCURACY = Accuracy("top1", 0.98, 0.981, None, 1.0, 0.0, 162)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (sentences.alias_words("2", "champion", ACCURACY, 0.01, True),
         "version 2 has alias champion: top1 accuracy 0.9800 on 162 held-out samples, drop "
         "+0.0010 of at most 0.01"),
        (sentences.alias_words("2", "champion", ACCURACY, 0.01, False),
         "version 2 has alias champion: top1 accuracy 0.9800 on random inputs (no data was "
         "given), drop +0.0010 of at most 0.01"),
        (sentences.champion_words("net", "3", "1", sentences.slower_words(1.0, "3", 2.0)),
         "version 1 stays champion: its p50 was 1 ms, version 3 has 2 ms (promote version 3 by "
         "hand with -e promote -P name=net -P version=3)"),
        (sentences.unproven_words("net", "3", "armv8", False),
         "version 3 is not promoted: this machine cannot run code for armv8; prove it on a board "
         "with -e promote -P name=net -P version=3 -P rpc_tracker=HOST:PORT -P rpc_key=KEY"),
        (sentences.unproven_words("net", "3", "nvidia-h200", True),
         "version 3 is not promoted: this machine cannot run code for nvidia-h200; prove it on a "
         "machine with that GPU with -e promote -P name=net -P version=3"),
    ],
    ids=["promoted", "no data", "tags", "board", "gpu"],
)  # fmt: skip
def test_what_became_of_a_version_is_one_sentence(words, said) -> None:
    assert words == said
    assert sentences.registration_words("net", "3", words) == (
        f"Registered as `models:/net/3`; {said}."
    )


def test_missing_importances_are_explained() -> None:
    assert sentences.no_importances_words(2, 4) == (
        "parameter importances are left out: 4 finished trials are needed, but there are 2"
    )
    assert sentences.no_importances_words(5, 4) == (
        "parameter importances are left out: all latencies are the same"
    )


def test_a_cut_table_says_so() -> None:
    assert sentences.rows_words(16, 16) == []
    assert sentences.rows_words(16, 20) == ["the first 16 of 20 trials; all are in trials.md"]


def test_labels_name_what_is_not_the_default() -> None:
    assert sentences.variant_words("fast", "subgraph", "float32", "auto") == "tvmopt fast"
    assert sentences.variant_words("fast", "operator", "int8", "NHWC") == (
        "tvmopt fast by operator int8 NHWC"
    )
    assert sentences.effort_words(FAST) == "fast"
    assert sentences.effort_words(FAST_OPERATOR) == "fast by operator"


def test_the_end_says_what_to_do_next() -> None:
    assert sentences.reused_lines(()) == []
    assert sentences.reused_lines(("convert", "tune"))[0].startswith("reused     convert, tune (")
    assert sentences.version_lines("net", "1", True, "version 1 has alias champion") == [
        "model      models:/net/1 already registered, alias candidate",
        "champion   version 1 has alias champion",
    ]
    assert "'models:/net@champion'" in sentences.load_line("net", "1", "champion")
    assert "'models:/net/1'" in sentences.load_line("net", "1", "")
    assert sentences.serve_line("tvmopt serve") == "serve           tvmopt serve"
    assert sentences.pull_line("tvmopt pull") == "take it there   tvmopt pull"
    page = "see the runs    http://127.0.0.1:5000"
    assert sentences.ui_lines("", "http://127.0.0.1:5000") == [page]
    assert sentences.ui_lines("mlflow ui", "http://127.0.0.1:5000") == [
        "open the UI     mlflow ui", page,
    ]  # fmt: skip
    assert sentences.stop_words(sentences.SPENT_TRIALS.format(3)) == (
        "the search ended because all 3 trials of its budget are done"
    )

"""Tests of the learned re-ranker: it corrects the cost model, and survives a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.ranking.functions import ARCH, convolution, matmul
from tvmopt.errors import TuneError
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.cpu.reranker import FILE, Reranker
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.ranked import FEATURES, Ranked, spread


@pytest.fixture(scope="module")
def tasks() -> list[list[Ranked]]:
    """Return good and bad configurations of a few functions, in the order of the cost model."""
    funcs = [
        matmul(64, 64, 64), matmul(96, 128, 64), matmul(196, 64, 128),
        convolution(14, 32, 32, padding=1), convolution(14, 64, 64, padding=1),
    ]  # fmt: skip
    ranked = [[r for r in DefaultPolicy(f, ARCH).ranked if r.facts] for f in funcs]
    return [every[:: max(1, len(every) // 60)][:60] for every in ranked]


def truth(ranked: list[Ranked], scale: float = 1.0) -> list[float]:
    """A machine on which columns inside rows cost three times the prediction."""
    return [
        scale * r.cycles * (3.0 if r.hint.loop_order[-1] == len(r.hint.loop_order) - 1 else 1.0)
        for r in ranked
    ]


def mistakes(order: list[Ranked], seconds: dict[str, float]) -> float:
    """Return the share of pairs in the wrong order."""
    times = np.array([seconds[r.hint.config_id] for r in order])
    pairs = np.triu(np.ones((len(times), len(times)), bool), 1)
    return float((times[:, None] > times[None, :])[pairs].mean())


def learnt(tasks: list[list[Ranked]]) -> Reranker:
    reranker = Reranker()
    for n, ranked in enumerate(tasks[:-1]):
        reranker.add(ranked, truth(ranked, 10.0**n))
    return reranker


def test_a_systematic_error_is_corrected_on_a_task_not_seen_before(tasks) -> None:
    last = tasks[-1]
    seconds = {r.hint.config_id: t for r, t in zip(last, truth(last), strict=True)}
    assert len(set(np.round(np.array(truth(last)) / [r.cycles for r in last]))) == 2
    corrected = learnt(tasks).order(last)
    assert sorted(r.hint.config_id for r in corrected) == sorted(seconds)
    before, after = mistakes(last, seconds), mistakes(corrected, seconds)
    assert before > 0.05
    assert after < before / 2


def test_the_model_decides_while_little_is_known(tasks) -> None:
    reranker = Reranker()
    assert reranker.order(tasks[0]) == tasks[0]
    reranker.add(tasks[0][:5], truth(tasks[0][:5]))
    assert len(reranker) == 5
    assert reranker.order(tasks[0]) == tasks[0]
    reranker.add(tasks[0][:2], [1.0, 2.0])  # too few samples to estimate the scale of the task
    assert len(reranker) == 5


def test_the_scale_of_a_task_is_of_no_interest(tasks) -> None:
    seconds = {r.hint.config_id: t for r, t in zip(tasks[-1], truth(tasks[-1]), strict=True)}
    wrong = []
    for scale in (1.0, 1e6):
        reranker = Reranker()
        for n, ranked in enumerate(tasks[:-1]):
            reranker.add(ranked, truth(ranked, scale**n))
        wrong.append(mistakes(reranker.order(tasks[-1]), seconds))
    # Logarithms of scaled latencies round differently, so a few near ties may swap.
    assert abs(wrong[0] - wrong[1]) < 0.02


def test_the_same_seed_gives_the_same_order(tasks) -> None:
    first, second = (learnt(tasks).order(tasks[-1]) for _ in "ab")
    assert first == second


def test_what_was_learnt_is_saved_and_loaded(tasks, tmp_path: Path) -> None:
    reranker = learnt(tasks)
    reranker.save(tmp_path)
    again = Reranker()
    again.load(tmp_path)
    assert len(again) == len(reranker) > 0
    assert again.order(tasks[-1]) == reranker.order(tasks[-1])
    again.load(tmp_path)
    assert len(again) == 2 * len(reranker)


def test_nothing_saved_is_nothing_known(tmp_path: Path) -> None:
    reranker = Reranker()
    reranker.load(tmp_path)
    assert len(reranker) == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"no archive"])
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(TuneError, match="must hold the samples of the re-ranker") as caught:
        Reranker().load(tmp_path)
    assert "delete it to start without" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_the_samples_is_an_error(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / FILE, other=np.zeros(3))
    with pytest.raises(TuneError, match="must hold the samples"):
        Reranker().load(tmp_path)


def test_samples_with_other_features_are_ignored(tmp_path: Path) -> None:
    for features, residuals in (
        (np.zeros((30, FEATURES + 1)), np.zeros(30)),
        (np.zeros((30, FEATURES)), np.zeros(29)),
        (np.zeros(30), np.zeros(30)),
    ):
        np.savez_compressed(tmp_path / FILE, features=features, residuals=residuals)
        reranker = Reranker()
        reranker.load(tmp_path)
        assert len(reranker) == 0


def test_features_tell_configurations_apart(tasks) -> None:
    for ranked in tasks:
        assert all(len(r.features) == FEATURES for r in ranked)
        assert len({tuple(r.features) for r in ranked}) > len(ranked) / 2


def test_features_hold_no_more_than_they_should(tasks) -> None:
    one = tasks[0][0]
    many = dataclasses.replace(one, facts=one.facts * 9)
    assert len(many.features) == FEATURES
    assert len(dataclasses.replace(one, facts=()).features) == FEATURES


def _hint(width: int, order: tuple[int, ...], parallel: int = 1) -> RegisterTileConfig:
    return RegisterTileConfig(
        "register_tile", ARCH, register_tile=(4, width), loop_order=order, parallel_loops=parallel
    )


def test_the_best_of_each_family_comes_before_its_likes() -> None:
    ranked = [
        Ranked(_hint(16, (0, 1)), 100.0),
        Ranked(_hint(16, (0, 1), parallel=2), 100.0),
        Ranked(_hint(32, (0, 1)), 110.0),
        Ranked(_hint(32, (1, 0)), 120.0),
        Ranked(_hint(64, (1, 0)), 200.0),
    ]
    assert [ranked.index(r) for r in spread(ranked, 5)] == [0, 2, 3, 1, 4]
    assert [ranked.index(r) for r in spread(ranked, 2)] == [0, 2]
    assert spread([], 3) == []


@given(
    st.lists(
        st.tuples(st.sampled_from([16, 32]), st.booleans(), st.integers(1, 3), st.floats(1, 9)),
        max_size=20,
    ),
    st.integers(0, 20),
)
def test_spread_takes_the_first_and_none_twice(drawn, count) -> None:
    ranked = sorted(
        (Ranked(_hint(w, (1, 0) if swap else (0, 1), p), c) for w, swap, p, c in drawn),
        key=lambda r: r.cycles,
    )
    found = spread(ranked, count)
    assert len(found) == min(count, len(ranked))
    assert len(set(map(id, found))) == len(found)
    assert found[:1] == ranked[: min(1, count)]

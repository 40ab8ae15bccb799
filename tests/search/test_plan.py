"""Order of trials: every variant once, cheap before expensive, promising ones first."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.search.effort import Effort
from tvmopt.search.plan import next_choice
from tvmopt.search.sampler import VariantSampler
from tvmopt.search.space import Choice, Space
from tvmopt.search.tried import FAILED, FINISHED, RUNNING, Tried

EFFORTS = (Effort("default"), Effort("fast", 20), Effort("metaschedule", 64))
SPACE = Space(
    ("float32", "bfloat16", "int8"),
    {"bfloat16": ("", "1"), "int8": ("0", "", "0,1")},
    ("NHWC", "NCHW16c", "NCHW"),
    EFFORTS,
)

DTYPES = ("bfloat16", "int8", "float32")


def _first(space, tried, untried):
    return untried[0]


def _finished(choice: Choice, latency: float, violation: float = 0.0) -> Tried:
    return Tried(choice, FINISHED, violation, (latency,))


def _run(space: Space, measure, sample=_first, most: int = 1000) -> list[Tried]:
    tried: list[Tried] = []
    while len(tried) < most:
        choice = next_choice(space, tried, sample)
        if choice is None:
            break
        assert choice in space
        assert choice not in {t.choice for t in tried}, "nothing is tried twice"
        tried.append(measure(choice))
    return tried


def test_in_the_end_all_that_finished_is_tried_with_every_effort() -> None:
    tried = _run(SPACE, lambda choice: _finished(choice, 1.0))
    assert len(tried) == len(SPACE)


def test_expensive_efforts_are_for_the_best_third() -> None:
    latency = {v: 20.0 + n for n, v in enumerate(SPACE.variants())}
    tried = _run(SPACE, lambda c: _finished(c, latency[c.variant]), most=16)
    dear = [t.choice for t in tried if t.choice.effort == EFFORTS[1]]
    cheap = [t.choice for t in tried if t.choice.effort == EFFORTS[0]]
    assert dear[0].variant == min(latency, key=lambda v: latency[v])
    assert len(cheap) >= 2 * len(dear)
    first = next(n for n, t in enumerate(tried) if t.choice.effort == EFFORTS[2])
    assert sum(t.choice.effort == EFFORTS[1] for t in tried[:first]) >= 3


def test_a_variant_is_tuned_by_operator_before_it_is_by_subgraph() -> None:
    efforts = (EFFORTS[0], Effort("fast", 20, "operator"), EFFORTS[1])
    space = Space(SPACE.dtypes, SPACE.skip_layers, SPACE.layouts, efforts)
    latency = {v: 20.0 + n for n, v in enumerate(space.variants())}
    tried = _run(space, lambda c: _finished(c, latency[c.variant]))
    for variant in space.variants():
        assert tuple(t.choice.effort for t in tried if t.choice.variant == variant) == efforts


def test_a_refused_variant_is_tuned_in_no_layout() -> None:
    """Held-out samples refuse it in one layout, when it led; it was feasible in another before."""
    efforts = EFFORTS[:2]
    space = Space(("float32", "int8"), {"int8": ("",)}, ("NHWC", "NCHW"), efforts)
    [kept, *rest] = [Choice(v, efforts[0]) for v in space.variants() if v.dtype == "int8"]
    exact = [Choice(v, efforts[0]) for v in space.variants() if v.dtype == "float32"]
    tried = [
        _finished(kept, 2.0),
        *(Tried(c, FINISHED, 1.0, (1.0,), inaccurate=True) for c in rest),
        *(_finished(c, 5.0 + n) for n, c in enumerate(exact)),
    ]
    assert next_choice(space, tried, _first) == Choice(exact[0].variant, efforts[1])


MAPS = Space(
    ("bfloat16", "auto", "float32"), {"bfloat16": ("",)}, ("NHWC", "NCHW"), EFFORTS[:2],
    {"dtype_maps": ("0", "1", "2")},
)  # fmt: skip


def _map_of(choice: Choice) -> str:
    return dict(choice.variant.further).get("dtype_map", "")


@pytest.mark.parametrize("accurate", [0, 1, 2, 3])
def test_a_map_is_tried_where_those_before_are_inaccurate(accurate: int) -> None:
    """Before anything is tuned; and none that is slower than an accurate one."""

    def measure(choice: Choice) -> Tried:
        number = _map_of(choice)
        if choice.variant.dtype == "bfloat16" or (number and int(number) < accurate):
            return Tried(choice, FINISHED, 1.0, (1.0,), inaccurate=True)
        return _finished(choice, 2.0 + EFFORTS.index(choice.effort))

    tried = _run(MAPS, measure, VariantSampler(0))
    numbers = [_map_of(t.choice) for t in tried]
    known = list(dict.fromkeys(filter(None, numbers)))
    assert known == [str(n) for n in range(min(accurate, 2) + 1)]
    first = [numbers.index(number) for number in known]
    assert first == list(range(first[0], first[0] + len(known)))
    efforts = [t.choice.effort for t in tried]
    assert efforts.index(EFFORTS[1]) > first[-1]


def test_infeasible_variants_are_tuned_only_when_nothing_else_is_left() -> None:
    def measure(choice: Choice) -> Tried:
        low = choice.variant.dtype != "float32"
        return _finished(choice, 0.1 if low else 1.0, 1.0 if low else 0.0)

    tried = _run(SPACE, measure)
    dear = [t for t in tried if t.choice.effort == EFFORTS[1]]
    place = [n for n, t in enumerate(dear) if t.violation]
    assert dear[0].choice.variant.dtype == "float32"
    assert min(place) >= 3, "float32 in each layout comes first"


def test_very_slow_variants_are_tuned_only_when_nothing_else_is_left() -> None:
    def measure(choice: Choice) -> Tried:
        return _finished(choice, 1.0 if choice.variant.dtype == "float32" else 2.1)

    tried = _run(SPACE, measure)
    assert len(tried) == len(SPACE)
    dear = [t for t in tried if t.choice.effort == EFFORTS[1]]
    last_cheap = max(n for n, t in enumerate(tried) if t.choice.effort == EFFORTS[0])
    assert {t.values[0] for t in tried[:last_cheap] if t in dear} == {1.0}


def test_inaccurate_variants_are_neither_tuned_nor_tried_in_another_layout() -> None:
    def measure(choice: Choice) -> Tried:
        low = choice.variant.dtype != "float32"
        return Tried(choice, FINISHED, float(low), (0.1 if low else 1.0,), inaccurate=low)

    tried = _run(SPACE, measure)
    cheap = [t for t in tried if t.choice.effort == EFFORTS[0]]
    wanted = Counter((v.dtype, v.skip_layers) for v in SPACE.variants())
    found = Counter((t.choice.variant.dtype, t.choice.variant.skip_layers) for t in cheap)
    assert found == {key: n if key[0] == "float32" else 1 for key, n in wanted.items()}
    dear = [t.choice for t in tried if t.choice.effort != EFFORTS[0]]
    assert {c.variant.dtype for c in dear} == {"float32"} and len(dear) == 6


@pytest.mark.parametrize(("slow_s", "tried_in_both"), [(2.5, {"bfloat16"}), (1.5, set(DTYPES))])
def test_a_layout_that_is_hopeless_for_one_dtype_is_not_tried_for_others(
    slow_s: float, tried_in_both: set[str]
) -> None:
    space = Space(DTYPES, dict.fromkeys(DTYPES[:2], ("",)), ("NHWC", "NCHW"), EFFORTS[:1])

    def measure(choice: Choice) -> Tried:
        return _finished(choice, slow_s if choice.variant.layout == "NCHW" else 1.0)

    tried = _run(space, measure)
    both = Counter(t.choice.variant.dtype for t in tried)
    assert {dtype for dtype, count in both.items() if count == 2} == tried_in_both
    assert set(both) == set(DTYPES)


def test_failed_variants_are_not_tuned() -> None:
    def measure(choice: Choice) -> Tried:
        return Tried(choice, FAILED) if choice.variant.dtype == "int8" else _finished(choice, 1.0)

    tried = _run(SPACE, measure)
    assert all(t.choice.effort == EFFORTS[0] for t in tried if t.choice.variant.dtype == "int8")


def test_no_poor_choice_is_made_while_trials_run() -> None:
    space = Space(("float32",), {}, ("NHWC", "NCHW"), EFFORTS[:2])
    first, second = (Choice(v, EFFORTS[0]) for v in space.variants())
    running = [_finished(first, 2.0), Tried(second, RUNNING)]
    assert next_choice(space, running, _first) is None
    ended = [_finished(first, 2.0), _finished(second, 1.0)]
    assert next_choice(space, ended, _first) == Choice(second.variant, EFFORTS[1])


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000))
def test_whatever_comes_of_trials_the_plan_goes_on_to_the_end(seed: int) -> None:
    rng = random.Random(seed)

    def measure(choice: Choice) -> Tried:
        if rng.random() < 0.3:
            return Tried(choice, FAILED)
        return _finished(choice, rng.uniform(0.6, 1), rng.choice([0.0, 0.0, rng.random()]))

    tried = _run(SPACE, measure, lambda space, done, left: rng.choice(list(left)))
    begun = {t.choice.variant for t in tried if t.choice.effort == EFFORTS[0]}
    assert begun == set(SPACE.variants())
    done = {t.choice for t in tried if t.state == FINISHED}
    for lower, upper in ((0, 1), (1, 2)):
        assert {c.variant for c in done if c.effort == EFFORTS[lower]} == {
            t.choice.variant for t in tried if t.choice.effort == EFFORTS[upper]
        }


# --- the sampler


def test_each_dtype_is_tried_before_any_is_explored() -> None:
    tried = _run(SPACE, lambda c: _finished(c, 1.0), VariantSampler(0), most=3)
    assert {t.choice.variant.dtype for t in tried} == {"float32", "bfloat16", "int8"}


GPU_SPACE = Space(
    ("float16", "int8", "bfloat16", "float32"),
    {"float16": ("",), "int8": ("0", ""), "bfloat16": ("",)},
    ("NHWC", "NCHW"),
    EFFORTS[:2],
)


def test_dtypes_are_begun_in_the_order_of_the_space() -> None:
    tried = _run(GPU_SPACE, lambda c: _finished(c, 1.0), VariantSampler(0), most=3)
    assert [t.choice.variant.dtype for t in tried] == ["float16", "int8", "bfloat16"]


@pytest.mark.parametrize("state", [FAILED, FINISHED])
def test_float32_is_next_while_nothing_is_feasible(state: str) -> None:
    def measure(choice: Choice) -> Tried:
        if choice.variant.dtype == "float32":
            return _finished(choice, 3.0)
        return Tried(choice, state, 0.5, (1.0,) if state == FINISHED else ())

    tried = _run(GPU_SPACE, measure, VariantSampler(0), most=3)
    assert [t.choice.variant.dtype for t in tried] == ["float16", "float32", "int8"]


def test_a_trial_that_still_runs_is_no_reason_for_float32() -> None:
    first = Choice(next(GPU_SPACE.variants()), EFFORTS[0])
    chosen = next_choice(GPU_SPACE, [Tried(first, RUNNING)], VariantSampler(0))
    assert chosen is not None and chosen.variant.dtype == "int8"


def test_the_sampler_finds_the_best_region_before_random_search() -> None:
    """Low latencies occur in one dtype and layout; the sampler tries those variants early."""

    def latency(choice: Choice) -> float:
        variant = choice.variant
        return 1.0 + 4.0 * (variant.dtype != "int8") + 2.0 * (variant.layout != "NCHW")

    space = Space(
        SPACE.dtypes,
        {"bfloat16": tuple(map(str, range(8))), "int8": tuple(map(str, range(8)))},
        SPACE.layouts,
        EFFORTS[:1],
    )
    variants = list(space.variants())
    good = sum(latency(Choice(v, EFFORTS[0])) == 1.0 for v in variants)
    share = []
    for seed in range(5):
        tried = _run(space, lambda c: _finished(c, latency(c)), VariantSampler(seed), most=24)
        share.append(sum(t.values[0] == 1.0 for t in tried) / good)
    by_chance = 24 / len(variants)
    assert sum(share) / len(share) > 1.3 * by_chance


def test_the_sampler_takes_failures_and_several_objectives() -> None:
    def measure(choice: Choice) -> Tried:
        if choice.variant.layout == "NCHW":
            return Tried(choice, FAILED)
        return Tried(choice, FINISHED, 0.5, (1.0, 0.1, 10.0))

    tried = _run(SPACE, measure, VariantSampler(1))
    assert len({t.choice for t in tried}) == len(tried)


def test_the_same_seed_gives_the_same_order() -> None:
    runs = [
        _run(SPACE, lambda c: _finished(c, float(hash(c) % 7)), VariantSampler(3), most=10)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]

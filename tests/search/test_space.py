"""Tests of the search space: its variants, its construction, and restrictions by the user."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.choices import GRANULARITIES, MEASURING
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.quantize import LayerCost, Sensitivity, SkipSet
from tvmopt.quantize.roofline import roofline, roofline_of
from tvmopt.search.choose import choose_dtypes, choose_efforts, choose_layouts, choose_skips
from tvmopt.search.declared import Declared, read_declared
from tvmopt.search.effort import Effort
from tvmopt.search.generate import generate_space
from tvmopt.search.space import BASELINE, Choice, Space, Variant

AVX512 = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")
SPACE = Space(
    ("float32", "int8"),
    {"int8": ("0,3", "")},
    ("NHWC", "NCHW"),
    (Effort("default"), Effort("fast", 20)),
)


class Fixed:
    """A fake trial that suggests given values, and records the parameters."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self.asked: dict[str, list[str]] = {}

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        self.asked[name] = choices
        assert self._values[name] in choices
        return self._values[name]


def test_each_variant_occurs_once_and_each_dtype_early() -> None:
    variants = list(SPACE.variants())
    assert len(set(variants)) == len(variants) == 6
    assert [v.dtype for v in variants[:2]] == ["float32", "int8"]
    assert variants[1].skip_layers == "0,3"
    assert len(SPACE) == 12


def test_a_parameter_is_asked_for_only_where_it_applies() -> None:
    for variant in SPACE.variants():
        for effort in SPACE.efforts:
            choice = Choice(variant, effort)
            trial = Fixed(SPACE.params(choice))
            assert SPACE.suggest(trial) == choice
            assert ("skip_layers_int8" in trial.asked) is (variant.dtype == "int8")
            assert choice in SPACE
            assert Choice.from_dict(choice.to_dict()) == choice


def test_the_baseline_is_no_part_of_the_space() -> None:
    assert BASELINE not in SPACE
    assert Choice(Variant("int8", "7", "NHWC"), Effort("default")) not in SPACE


names = st.lists(st.sampled_from(["int8", "bfloat16", "float16"]), min_size=0, max_size=3)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(names, st.integers(0, 9), st.lists(st.integers(1, 99), min_size=1, max_size=3))
def test_any_space_survives_the_way_through_json(dtypes, convolutions, topk) -> None:
    declared = Declared(topk=tuple(topk), strategies=("default", "fast"))
    space = generate_space(declared, ("float32", *dict.fromkeys(dtypes)), convolutions, None)
    assert Space.from_dict(space.to_dict()) == space
    for variant in space.variants():
        for effort in space.efforts:
            choice = Choice(variant, effort)
            assert choice in space
            assert space.suggest(Fixed(space.params(choice))) == choice


def test_dtypes_are_those_that_the_cpu_computes_faster() -> None:
    assert choose_dtypes(Declared(), roofline(AVX512), False) == ("bfloat16", "int8", "float32")
    assert choose_dtypes(Declared(), roofline(("avx2",)), False) == ("int8", "float32")
    assert choose_dtypes(Declared(), roofline(("sse4_2",)), False) == ("float32",)
    assert choose_dtypes(Declared(dtypes=("int8",)), roofline(("avx2",)), False) == ("int8",)
    assert choose_dtypes(Declared(), roofline(AVX512), True) == ("float32",)
    with pytest.raises(ConfigError, match=r"float32 .* for a model that is quantised"):
        choose_dtypes(Declared(dtypes=("int8",)), roofline(AVX512), True)


@pytest.mark.parametrize(
    ("target", "dtypes"),
    [
        ("h200", ("float16", "int8", "bfloat16", "float32")),
        ("t4", ("float16", "int8", "float32")),
        ("sapphirerapids", ("bfloat16", "int8", "float32")),
        ("neoverse-v1", ("bfloat16", "int8", "float16", "float32")),
        ("cascadelake", ("int8", "float32")),
    ],
)
def test_the_fastest_half_float_comes_first_and_float32_last(target: str, dtypes: tuple) -> None:
    peaks = roofline_of(resolve_target(target))
    assert choose_dtypes(Declared(), peaks, False) == dtypes
    declared = Declared(dtypes=tuple(reversed(dtypes)))
    assert choose_dtypes(declared, peaks, False) == dtypes


def test_tf32_is_a_dtype_only_where_it_is_allowed() -> None:
    h200 = roofline_of(resolve_target("h200"))
    assert choose_dtypes(Declared(), h200, False, allow_tf32=True)[-2:] == ("tf32", "float32")
    assert "tf32" not in choose_dtypes(Declared(), h200, False)
    declared = Declared(dtypes=("float16", "float32"))
    found = choose_dtypes(declared, h200, False, allow_tf32=True)
    assert found == ("float16", "tf32", "float32")
    assert choose_dtypes(Declared(dtypes=("int8",)), h200, False, allow_tf32=True) == ("int8",)
    assert choose_dtypes(Declared(), h200, True, allow_tf32=True) == ("float32",)


def test_a_choice_of_tf32_converts_to_float32_with_tf32_allowed() -> None:
    space = generate_space(Declared(), ("float32", "tf32", "float16"), 3, None, on_gpu=True)
    assert "tf32" in space.describe()
    assert Space.from_dict(space.to_dict()) == space
    for variant in space.variants():
        choice = Choice(variant, space.efforts[0])
        settings_ = choice.settings()
        assert settings_["allow_tf32"] == (variant.dtype == "tf32")
        assert settings_["dtype"] == ("float32" if variant.dtype == "tf32" else variant.dtype)
        assert variant.dtype == "float16" or not variant.skip_layers
        assert choice.params()["dtype"] == variant.dtype


def test_the_space_of_a_gpu_holds_what_it_has_kernels_for() -> None:
    space = generate_space(Declared(), ("float32",), 3, None, on_gpu=True)
    assert space.layouts == ("NHWC", "NCHW")
    assert [str(e) for e in space.efforts] == ["default", "fast-20-operator", "fast-20"]


def test_layouts_are_for_convolutions() -> None:
    assert choose_layouts(Declared(), 0) == ("auto",)
    assert choose_layouts(Declared(layouts=("NCHW",)), 0) == ("auto",)
    assert choose_layouts(Declared(), 3) == ("NHWC", "NCHW16c", "NCHW")
    assert choose_layouts(Declared(layouts=("NCHW",)), 3) == ("NCHW",)


def test_efforts_rise_in_price_in_whatever_order_they_are_declared() -> None:
    declared = Declared(strategies=("metaschedule", "fast", "default"), topk=(40, 5))
    assert [str(e) for e in choose_efforts(declared)] == [
        "default", "fast-5-operator", "fast-5", "fast-40-operator", "fast-40",
        "metaschedule-64-operator", "metaschedule-64",
    ]  # fmt: skip
    assert [str(e) for e in choose_efforts(Declared())] == [
        "default", "fast-20-operator", "fast-20", "metaschedule-64-operator", "metaschedule-64",
    ]  # fmt: skip


def test_granularities_narrow_the_efforts_that_measure() -> None:
    subgraph, operator = (Declared(granularities=(g,)) for g in ("subgraph", "operator"))
    assert [str(e) for e in choose_efforts(subgraph)] == [
        "default", "fast-20", "metaschedule-64",
    ]  # fmt: skip
    assert [str(e) for e in choose_efforts(operator)] == [
        "default", "fast-20-operator", "metaschedule-64-operator",
    ]  # fmt: skip
    untuned = Declared(strategies=("default", "none"), granularities=("operator",))
    assert [str(e) for e in choose_efforts(untuned)] == ["none", "default"]


measuring = st.builds(
    Effort, st.sampled_from(MEASURING), st.integers(0, 999), st.sampled_from(GRANULARITIES)
)
efforts = measuring | st.sampled_from([Effort("none"), Effort("default")])


@given(efforts, efforts)
def test_an_effort_is_what_its_name_says(one: Effort, other: Effort) -> None:
    assert Effort.parse(str(one)) == one
    assert (str(one) == str(other)) == (one == other) == (one.price == other.price)


@pytest.mark.parametrize(
    "text", ["", "fast-", "quick-20", "fast-20-tile", "fast-operator-20", "fast-20-operator-1"]
)
def test_unknown_efforts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="an effort must be a strategy with its size and"):
        Effort.parse(text)


def test_efforts_without_measurement_have_no_granularity() -> None:
    with pytest.raises(ConfigError, match="of the effort default must be one of subgraph, but"):
        Effort.parse("default-operator")
    with pytest.raises(ConfigError, match="of the effort fast must be one of subgraph, operator"):
        Effort("fast", 20, "tile")


def test_twins_differ_in_their_granularity_alone() -> None:
    variant = Variant("float32", "", "NHWC")
    fast, operator = (Choice(variant, Effort("fast", 20, g)) for g in GRANULARITIES)
    assert fast.is_twin(operator) and operator.is_twin(fast) and not fast.is_twin(fast)
    assert not Choice(variant, Effort("fast", 10)).is_twin(operator)
    assert not Choice(Variant("int8", "", "NHWC"), fast.effort).is_twin(operator)
    assert not Choice(variant, Effort("default")).is_twin(operator)


def _skip(layers: tuple[int, ...], holds: bool, source: str = "measured") -> SkipSet:
    return SkipSet("int8", layers, source, 0.999, None, 0.0, 1.0 - len(layers) / 10, 8, holds)


def _sensitivity(*sets: SkipSet) -> Sensitivity:
    return Sensitivity(("int8",), (), sets, 8, 1.0, {})


def test_skip_sets_are_the_proposed_one_none_and_others_that_held() -> None:
    found = _sensitivity(
        _skip((), False), _skip((1,), False), _skip((1, 2), True), _skip((1, 2, 3), True),
        _skip(tuple(range(10)), True, "exact"),
    )  # fmt: skip
    assert choose_skips(found, "int8") == ("1,2", "", "1,2,3")


def test_where_only_the_float_model_holds_all_layers_are_tried_once() -> None:
    found = _sensitivity(_skip((), False), _skip(tuple(range(10)), True, "exact"))
    assert choose_skips(found, "int8") == ("",)


def test_behind_the_sets_that_held_come_rising_ones_by_cost() -> None:
    costs = [LayerCost(i, f"n{i}", "Conv", "int8", "measured", i, gain=0.1) for i in range(16)]
    found = dataclasses.replace(_sensitivity(_skip((), True)), costs=tuple(costs))
    chosen = choose_skips(found, "int8")
    assert chosen == ("", "14,15", "12,13,14,15", "8,9,10,11,12,13,14,15")
    found = dataclasses.replace(found, skip_sets=(_skip((), False), _skip((1, 2, 3), True)))
    assert choose_skips(found, "int8") == (
        "1,2,3", "", "12,13,14,15", "8,9,10,11,12,13,14,15",
    )  # fmt: skip


def test_many_skip_sets_are_thinned_out_and_the_proposed_one_stays() -> None:
    sets = [_skip(tuple(range(n)), n > 1) for n in range(10)]
    chosen = choose_skips(_sensitivity(*sets), "int8")
    assert len(chosen) == len(set(chosen)) <= 6
    assert "" in chosen


def test_a_file_declares_and_parameters_go_before_it(tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "dtypes: [float32, int8]\nlayouts: NHWC\ntopk: [5, 20]\n"
        "skip_layers: {int8: ['', [0, 3], 7]}\ngranularities: operator\n"
    )
    declared = read_declared(str(path), "int8", "", "", "", 30)
    assert declared.granularities == ("operator",)
    both = read_declared(str(path), "", "", "", "operator, subgraph", 30)
    assert both.granularities == ("operator", "subgraph")
    assert declared.dtypes == ("int8",)
    assert declared.layouts == ("NHWC",)
    assert declared.topk == (5, 20)
    assert declared.skip_layers == {"int8": ("", "0,3", "7")}
    assert read_declared("", "", "", "", "", 30).topk == (30,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dtype: [int8]", "space must be a YAML file with a mapping of dtypes, .*'dtype'"),
        ("- int8", "space must be a YAML file .* holds list"),
        ("dtypes: [int7]", "dtypes must be one of float32, .*'int7'"),
        ("layouts: [NWHC]", "layouts must hold layouts such as NHWC, but got 'NWHC'"),
        ("strategies: [slow]", "strategies must be one of fast, .*'slow'"),
        ("granularities: [op]", "granularities must be one of subgraph, operator, but got 'op'"),
        ("topk: 0", "topk and metaschedule_trials must be at least 1 .*, but got \\[0\\]"),
        ("topk: many", "topk must be a whole number, but got 'many'"),
        ("skip_layers: [1]", "skip_layers must list sets by dtype"),
        ("a: [", "space must be a YAML file .* cannot be read"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_declared(str(path), "", "", "", "", 20)


def test_a_missing_file_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere.yaml' cannot be read"):
        read_declared("nowhere.yaml", "", "", "", "", 20)


def test_a_space_must_hold_something() -> None:
    with pytest.raises(ConfigError, match="layouts must hold at least one value"):
        Space(("float32",), {}, (), (Effort("default"),))
    with pytest.raises(ConfigError, match="skip_layers must hold a set for int8"):
        Space(("int8",), {}, ("NHWC",), (Effort("default"),))

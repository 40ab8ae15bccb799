"""Everything about a hyper-parameter follows from its entry in the list of dimensions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt import choices
from tvmopt.errors import ConfigError
from tvmopt.parameters.commands import MainCommand
from tvmopt.search import declared as declared_module
from tvmopt.search import dimensions, generate, space
from tvmopt.search.declared import Declared, read_declared
from tvmopt.search.dimension import Dimension
from tvmopt.search.dimensions import DIMENSIONS, EFFORT, KEYS, VARIANT
from tvmopt.search.effort import Effort
from tvmopt.search.generate import generate_space
from tvmopt.search.space import BASELINE, Choice, Space, Variant

SPACE = Space(
    ("float32", "int8"), {"int8": ("0,3", "")}, ("NHWC", "NCHW"),
    (Effort("default"), Effort("fast", 20, "operator"), Effort("metaschedule", 64)),
)  # fmt: skip


class Asked:
    """A trial that suggests given parameters."""

    def __init__(self, params: dict[str, str]) -> None:
        self._params = params
        self.names: list[str] = []

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        self.names.append(name)
        assert self._params[name] in choices
        return self._params[name]


# --- what is stored stays as it was


def test_stored_forms_are_those_of_earlier_versions() -> None:
    choice = Choice(Variant("int8", "0,3", "NHWC"), Effort("fast", 20, "operator"))
    stored = {
        "dtype": "int8", "skip_layers": "0,3", "layout": "NHWC", "effort": "fast-20-operator"
    }  # fmt: skip
    assert choice.to_dict() == stored
    assert Choice.from_dict(stored) == choice
    assert SPACE.params(choice) == {
        "dtype": "int8", "skip_layers_int8": "0,3", "layout": "NHWC", "effort": "fast-20-operator",
    }  # fmt: skip
    assert choice.params() == {**stored, "strategy": "fast", "granularity": "operator"}
    assert BASELINE.params()["skip_layers"] == "none"
    data = {
        "dtypes": ["float32", "int8"], "skip_layers": {"int8": ["0,3", ""]},
        "layouts": ["NHWC", "NCHW"],
        "efforts": ["default", "fast-20-operator", "metaschedule-64"],
    }  # fmt: skip
    assert SPACE.to_dict() == data
    assert Space.from_dict(data) == SPACE
    assert Declared(dtypes=("int8",), skip_layers={"int8": ("",)}).to_dict() == {
        "dtypes": ("int8",), "skip_layers": {"int8": ("",)}, "layouts": (), "strategies": (),
        "granularities": (), "topk": (20,), "metaschedule_trials": 64,
    }  # fmt: skip
    assert KEYS.keys() >= set(Declared().to_dict())


def test_a_choice_is_labelled_by_what_it_is() -> None:
    efforts = Effort("fast", 20), Effort("default")
    labels = [
        str(Choice(Variant("int8", skipped, "NHWC"), effort))
        for skipped, effort in zip(("0,3", "0"), efforts, strict=True)
    ]
    assert labels == ["int8 NHWC fast-20 without 2 layers", "int8 NHWC default without 1 layer"]
    assert str(BASELINE) == "float32 NCHW none"


def test_a_space_is_described_in_one_line() -> None:
    assert SPACE.describe() == (
        "float32, int8 (2 skip sets) x NHWC, NCHW x default -> fast-20-operator -> "
        "metaschedule-64: 18 choices"
    )


words = st.lists(st.integers(0, 9).map(str), min_size=1, max_size=3, unique=True)


@st.composite
def spaces(draw) -> Space:
    low = draw(st.lists(st.sampled_from(choices.LOW_DTYPES), max_size=3, unique=True))
    dtypes = draw(st.permutations([*low, *(["float32"] if not low or draw(st.booleans()) else [])]))
    layouts = st.lists(st.sampled_from(["NHWC", "NCHW", "NCHW8c"]), min_size=1, unique=True)
    efforts = (Effort("default"), Effort("fast", 5))[: draw(st.integers(1, 2))]
    skips = {dtype: tuple(draw(words)) for dtype in low}
    return Space(tuple(dtypes), skips, tuple(draw(layouts)), efforts)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(spaces())
def test_variants_are_in_the_order_of_earlier_versions(found: Space) -> None:
    first, rest = [], []
    for dtype in found.dtypes:
        skips = found.skips_of(dtype)
        every = [Variant(dtype, s, layout) for layout, s in itertools.product(found.layouts, skips)]
        first.append(every[0])
        rest += every[1:]
    assert list(found.variants()) == first + rest


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(spaces())
def test_parameters_are_all_that_a_choice_may_ask_for(found: Space) -> None:
    names = set()
    for variant in found.variants():
        choice = Choice(variant, found.efforts[-1])
        asked = Asked(found.params(choice))
        assert found.suggest(asked) == choice
        assert asked.names == list(found.params(choice))
        names |= set(asked.names)
    assert names == set(found.parameters())


# --- a new dimension


@pytest.fixture
def rounding(monkeypatch) -> Dimension:
    """Add a dimension that refines int8 to the list."""
    added = Dimension("rounding", "roundings", "", ("even", "up"), of="dtype", applies_to=("int8",))
    every = (*DIMENSIONS[:-1], added, EFFORT)
    for module in (dimensions, space, declared_module, generate):
        monkeypatch.setattr(module, "DIMENSIONS", every)
    monkeypatch.setattr(space, "VARIANT", (*VARIANT, added))
    monkeypatch.setattr(declared_module, "KEYS", {**KEYS, "roundings": added})
    return added


def test_a_new_dimension_is_searched_when_it_is_declared(rounding, tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("roundings: [even, up, even]\nstrategies: default\n")
    dtypes = ("float32", "bfloat16", "int8")
    found = generate_space(read_declared(str(path), "", "", "", "", 20), dtypes, 0, None)
    assert [str(Choice(v, found.efforts[0])) for v in found.variants()] == [
        "float32 auto default", "bfloat16 auto default", "int8 auto default even",
        "int8 auto default up",
    ]  # fmt: skip
    last = Choice(list(found.variants())[-1], Effort("default"))
    assert found.params(last)["rounding_int8"] == "up"
    assert found.suggest(Asked(found.params(last))) == last
    assert Choice.from_dict(last.to_dict()) == last and last in found
    assert last.params()["rounding"] == "up"
    assert last.settings()["rounding"] == "up"
    assert Space.from_dict(found.to_dict()) == found
    assert found.to_dict()["roundings"] == ["even", "up"]
    assert "x even, up x default: 4 choices" in found.describe()
    assert "rounding" not in found.params(BASELINE)


def test_a_new_dimension_is_no_part_of_other_searches(rounding) -> None:
    read = read_declared("", "", "", "", "", 20)
    found = generate_space(read, ("float32", "int8"), 3, None)
    assert found.to_dict().keys() == SPACE.to_dict().keys()
    assert read.to_dict() == {**Declared().to_dict(), "topk": (20,)}
    assert {v.further for v in found.variants()} == {()}
    stored = Choice.from_dict(Choice(Variant("int8", "", "NHWC"), Effort("default")).to_dict())
    assert "rounding" not in stored.settings()


def test_a_new_dimension_may_be_given_as_a_parameter(rounding) -> None:
    read = read_declared("", "", "", "", "", 20, roundings="up")
    assert read.to_dict()["roundings"] == ("up",)
    with pytest.raises(ConfigError, match="roundings must be one of even, up, but got 'x'"):
        read_declared("", "", "", "", "", 20, roundings="even, x")


# --- skip sets


def test_layers_of_a_skip_set_take_the_layout() -> None:
    settings = Choice(Variant("int8", "0,3", "NHWC"), Effort("default")).settings()
    assert settings["keep_dtype"] == "0,3"
    assert "skip_layers" not in settings


# --- thresholds


@pytest.mark.parametrize(
    ("declared", "is_large", "wanted"),
    [("", True, ["exact", "float16", "int8"]), ("", False, [None]), ("int8", False, ["int8"])],
)
def test_thresholds_are_searched_for_large_ensembles(declared, is_large, wanted) -> None:
    read = read_declared("", "", "", "default", "", 20, thresholds=declared)
    found = generate_space(read, ("float32",), 0, None, has_large_trees=is_large)
    assert [dict(v.further).get("thresholds") for v in found.variants()] == wanted


# --- quantizers


def test_quantizers_are_searched_for_int8_when_they_are_declared(tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("quantizers: [onnxruntime, auto]\nstrategies: default\n")
    found = generate_space(
        read_declared(str(path), "", "", "", "", 20), ("float32", "int8"), 0, None
    )
    assert [dict(v.further).get("quantizer") for v in found.variants()] == [
        None, "onnxruntime", "auto",
    ]  # fmt: skip
    assert "quantizers" not in SPACE.to_dict()


def test_a_declared_quantizer_must_exist() -> None:
    with pytest.raises(ConfigError, match="quantizers must be one of auto, onnxruntime, nncf"):
        read_declared("", "", "", "", "", 20, quantizers="openvino")


@pytest.mark.parametrize("quantizer", ["nncf", "nncf-accurate"])
def test_a_declared_quantizer_must_be_installed(without_nncf, quantizer) -> None:
    with pytest.raises(ConfigError, match=f"quantizer={quantizer} needs NNCF, which is not"):
        read_declared("", "", "", "", "", 20, quantizers=f"auto,{quantizer}")


# --- the list itself


def test_each_dimension_sets_parameters_of_a_request() -> None:
    known = {one.name for one in MainCommand.parameters()}
    for dimension in DIMENSIONS:
        value = "fast-20" if dimension is EFFORT else "NHWC"
        assert dimension.settings(value).keys() <= known


def test_a_dimension_comes_after_the_one_that_it_refines() -> None:
    names: list[str] = []
    for dimension in DIMENSIONS:
        assert dimension.help
        assert not dimension.of or dimension.of in names
        assert len(dimension.columns) == len(
            dimension.cells("" if dimension is not EFFORT else "none")
        )
        names.append(dimension.name)
    assert len({title for d in DIMENSIONS for title in d.columns}) == sum(
        len(d.columns) for d in DIMENSIONS
    )

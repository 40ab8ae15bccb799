"""Tests of ``skip_layers``: which layers its patterns select."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.skip_layers import SkipLayers

LAYERS = [
    SimpleNamespace(index=index, name=name, op=op)
    for index, (name, op) in enumerate(
        [("stem", "Conv"), ("block1.conv", "Conv"), ("block2.conv", "Conv"), ("fc1", "Gemm"),
         ("fc2", "MatMul"), ("7", "Conv")]
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (None, ()),
        ("", ()),
        (" , ", ()),
        ("0,fc*", (0, "fc*")),
        (" 3 , 3,a ,+1,-2", (3, "a", 1, -2)),
        ([0, "fc*"], (0, "fc*")),
        ((np.int64(4), "5"), (4, 5)),
    ],
)
def test_parse(given, parsed):
    assert SkipLayers.parse(given) == parsed


@pytest.mark.parametrize("wrong", [[1.5], [None], [True]])
def test_what_is_no_pattern(wrong):
    with pytest.raises(ConfigError, match="skip_layers must hold indices, name globs or operator"):
        SkipLayers.parse(wrong)


@pytest.mark.parametrize(
    ("skip", "indices"),
    [
        ("0", [0]),
        ("fc*,0", [0, 3, 4]),
        ("block?.conv", [1, 2]),
        ("Conv", [0, 1, 2, 5]),
        (["MatMul", "Gemm"], [3, 4]),
        ("*", [0, 1, 2, 3, 4, 5]),
        (None, []),
    ],
)
def test_resolve(skip, indices):
    assert list(SkipLayers.parse(skip).resolve(LAYERS)) == indices


def test_first_pattern_is_the_reason():
    assert SkipLayers.parse("fc1,fc*").resolve(LAYERS) == {
        3: "skip_layers: fc1",
        4: "skip_layers: fc*",
    }


@pytest.mark.parametrize("op", ["relax.nn.conv2d", "nn.conv2d", "conv2d"])
def test_relax_operators(op):
    layers = [SimpleNamespace(index=0, name="lv", op="nn.conv2d")]
    assert list(SkipLayers.parse([op]).resolve(layers)) == [0]


@pytest.mark.parametrize("pattern", ["6", "-1", "conv*", "conv", "Convolution"])
def test_pattern_that_matches_nothing(pattern):
    with pytest.raises(
        ConfigError,
        match="skip_layers must match layers, but .* matches none of "
        r"the layers 0 to 5 \(names stem, block1.conv, ..., 7; operators Conv",
    ):
        SkipLayers.parse(f"0,{pattern}").resolve(LAYERS)


def test_model_without_layers():
    with pytest.raises(ConfigError, match="matches none of a model without layers"):
        SkipLayers.parse("0").resolve([])
    assert SkipLayers.parse("").resolve([]) == {}


@given(st.lists(st.integers(0, 5) | st.sampled_from(["fc*", "Conv", "s?em"]), max_size=5))
def test_text_and_list_mean_the_same(items):
    text = ",".join(map(str, items))
    found = SkipLayers.parse(items).resolve(LAYERS)
    assert found == SkipLayers.parse(text).resolve(LAYERS)
    assert list(found) == sorted(found)
    assert set(found) >= {item for item in items if isinstance(item, int)}


def test_auto_is_kept_apart_from_layers_that_are_named():
    asked = SkipLayers.parse("auto, fc1")
    assert (asked.auto, asked.named, str(asked)) == (True, ("fc1",), "auto,fc1")
    assert not SkipLayers.parse("fc1").auto
    assert list(asked.named.resolve(LAYERS)) == [3]
    with pytest.raises(ConfigError, match="'auto' matches none"):
        asked.resolve(LAYERS)


def test_parsed_patterns_are_not_parsed_again():
    asked = SkipLayers.parse("0,fc*")
    assert SkipLayers.parse(asked) is asked
    assert SkipLayers.parse(str(asked)) == asked

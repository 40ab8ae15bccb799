"""Tests of declarations: types, rules, groups."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.parameters import COMMANDS
from tvmopt.parameters.declare import Group, Parameter, needed, parameter, words
from tvmopt.parameters.groups import ModelParameters
from tvmopt.skip_layers import SkipLayers


def _refuse(name: str, value: object) -> None:
    raise ConfigError(f"{name} is never right, but got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Group):
    """Parameters of every type."""

    count: int = parameter(3, "how many", least=1)
    share: float = parameter(0.5, "how much", least=0, most=1)
    name: str = parameter("", "a name")
    kind: str = parameter("a", "which", choices=("a", "b"))
    kinds: str = parameter("", "which ones", choices=("a", "b"), listed=True)
    flag: bool = parameter(False, "whether")
    skip_layers: SkipLayers = parameter(SkipLayers(), "which layers")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count must be at least 1, but got 0"),
        ({"count": 1.5}, "count must be a whole number, but got 1.5"),
        ({"count": True}, "count must be a whole number, but got True"),
        ({"count": "many"}, "count must be a whole number, but got 'many'"),
        ({"share": 2}, "share must be 0 to 1, but got 2"),
        ({"share": float("nan")}, "share must be a finite number, but got nan"),
        ({"share": 10**400}, "share must be a finite number, but got inf"),
        ({"share": None}, "share must be a number, but got None"),
        ({"name": ["a"]}, r"name must be text, but got \['a'\]"),
        ({"name": None}, "name must be text, but got None"),
        ({"kind": "c"}, "kind must be one of a, b, but got 'c'"),
        ({"kinds": "a,c"}, "kinds must be one of a, b, but got 'c'"),
        ({"flag": 1}, "flag must be true or false, but got 1"),
        ({"skip_layers": [1.5]}, "skip_layers must hold indices"),
        ({"skip_layers": 1.5}, "skip_layers must hold indices"),
    ],
)
def test_values_that_break_a_rule(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Example(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"count": "4"}, 4),
        ({"count": np.int64(4)}, 4),
        ({"share": 1}, 1.0),
        ({"share": "0.25"}, 0.25),
        ({"name": 3}, "3"),
        ({"kinds": ["a", "b"]}, "a,b"),
        ({"flag": "yes"}, True),
        ({"skip_layers": [0, "fc*"]}, (0, "fc*")),
        ({"skip_layers": 0}, (0,)),
        ({"skip_layers": "0,fc*"}, (0, "fc*")),
        ({"skip_layers": None}, ()),
    ],
)
def test_values_are_converted(given, value):
    [name] = given
    found = getattr(Example(**given), name)
    kind = {one.name: one.kind for one in Example.parameters()}[name]
    assert (found, type(found)) == (value, kind)


@given(st.text(max_size=20))
def test_text_is_parsed_or_refused_in_one_line(text):
    for one in Example.parameters():
        try:
            value = one.parse(text)
        except ConfigError as error:
            assert str(error).startswith(f"{one.name} must ")
            assert "\n" not in str(error)
        else:
            assert type(value) is one.kind


def test_a_rule_of_its_own():
    with pytest.raises(ConfigError, match="p is never right, but got x"):
        Parameter("p", str, "", "", check=_refuse).parse("x")


def test_a_parameter_without_default():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Named(Group):
        name: str = needed("a name")

    [one] = Named.parameters()
    assert (one.default, one.help) == (None, "a name")
    with pytest.raises(TypeError):
        Named()


def test_words_are_distinct_and_in_order():
    assert words(" b,a ,, b") == ("b", "a")


def test_every_parameter_has_one_meaning():
    """A name that several groups declare has one type, and the same help or another default."""
    kinds: dict[str, set[type]] = {}
    for command in COMMANDS.values():
        for one in command.parameters():
            kinds.setdefault(one.name, set()).add(one.kind)
            assert one.help and one.help == one.help.strip()
            assert (
                one.help[0].islower()
                or not one.help[0].isalpha()
                or one.help.startswith(("ONNX", "TCP", "YAML"))
            )
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_defaults_keep_to_their_rules():
    assert ModelParameters() == ModelParameters(**ModelParameters().values())
    for command in COMMANDS.values():
        for one in command.parameters():
            if one.default is not None:
                assert one.converted(one.default) == one.default

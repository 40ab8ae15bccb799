"""Configurations validate every field, and survive JSON."""

from __future__ import annotations

import json

import pytest

from tvmopt.config import BuildConfig, ConvertConfig, EvaluateConfig, TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.parameters import ENTRY_POINTS, Parameter

TARGET = {"mcpu": "haswell"}


@pytest.mark.parametrize(
    "config",
    [
        ConvertConfig("x:1x3", TARGET),
        TuneConfig(TARGET, strategy="metaschedule", trials=3, time_budget=1.5, seed=7),
        BuildConfig("name", TARGET, "none"),
        EvaluateConfig(2, 1.0, 10, metric="top1", repeats=50),
    ],
)
def test_round_trip_through_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvertConfig("x=one", TARGET), "input_shapes must be name:AxBxC"),
        (
            lambda: TuneConfig(TARGET, strategy="magic"),
            "strategy must be one of .*, but got 'magic'",
        ),
        (lambda: TuneConfig(TARGET, granularity="op"), "granularity must be one of subgraph"),
        (lambda: TuneConfig(TARGET, trials=-1), "trials must be at least 0, but got -1"),
        (lambda: TuneConfig(TARGET, time_budget=-0.5), "time_budget must be at least 0"),
        (lambda: TuneConfig(TARGET, time_budget=float("nan")), "time_budget .* got nan"),
        (
            lambda: TuneConfig(TARGET, strategy="metaschedule", trials=0),
            "trials must be at least 1 for strategy",
        ),
        (lambda: BuildConfig("n", TARGET, "some"), "schedule must be one of default, none"),
        (lambda: EvaluateConfig(1, metric="f2"), "metric must be one of auto, top1, fidelity"),
        (lambda: EvaluateConfig(1, repeats=4), "repeats must be at least 5, but got 4"),
        (lambda: EvaluateConfig(1, time_limit_s=0), "time_limit must be at least 0.1"),
    ],
)
def test_rules(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", ["haswell", "t4"])
def test_tf32_needs_tensor_cores_of_ampere_or_newer(name):
    target = resolve_target(name, 1)
    with pytest.raises(ConfigError, match=f"allow_tf32 must be false for {target.device}") as error:
        ConvertConfig("x:1x3", target.to_dict(), allow_tf32=True)
    assert "\n" not in str(error.value) and "8.0 (Ampere)" in str(error.value)


def test_allowed_tf32_is_what_float32_layers_multiply_in():
    target = resolve_target("a100").to_dict()
    exact, allowed = (ConvertConfig("x:1x3", target, allow_tf32=a) for a in (False, True))
    assert (exact.computed_dtype, allowed.computed_dtype) == ("float32", "tf32")
    assert allowed.may_lose_accuracy and not exact.may_lose_accuracy
    assert ConvertConfig("x:1x3", target, dtype="int8", allow_tf32=True).computed_dtype == "int8"
    assert "allow_tf32" not in exact.to_dict()  # the digest of exact float32 stays as it was
    assert ConvertConfig.from_dict(allowed.to_dict()) == allowed != exact


def test_a_parameter_that_the_strategy_does_not_use_changes_no_configuration():
    given = {"topk": 3, "trials": 5, "granularity": "operator", "time_budget": 9.0}
    board = {"rpc_tracker": "host:1", "rpc_key": "pi5"}
    assert TuneConfig(TARGET, strategy="default", **given, **board) == TuneConfig(
        TARGET, strategy="default"
    )
    fast = TuneConfig(TARGET, strategy="fast", **given)
    assert (fast.topk, fast.granularity, fast.time_budget) == (3, "operator", 9.0)
    assert fast.trials == TuneConfig(TARGET).trials
    assert TuneConfig(TARGET, strategy="metaschedule", **given).trials == 5


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, " a b ", "a b"), (int, " 12 ", 12), (float, "1e-2", 0.01), (float, "3", 3.0),
        (bool, "TRUE", True), (bool, "1", True), (bool, "yes", True), (bool, "False", False),
        (bool, "0", False), (bool, "no", False),
    ],
)  # fmt: skip
def test_parameters_parse(kind, text, value):
    parsed = Parameter("p", kind, None, "").parse(text)
    assert (parsed, type(parsed)) == (value, kind)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (int, "1.5", "p must be a whole number, but got '1.5'"),
        (int, "many", "p must be a whole number, but got 'many'"),
        (float, "1,5", "p must be a number, but got '1,5'"),
        (float, "nan", "p must be a finite number, but got 'nan'"),
        (float, "-inf", "p must be a finite number, but got '-inf'"),
        (bool, "maybe", "p must be true or false, but got 'maybe'"),
    ],
)
def test_parameters_refuse(kind, text, message):
    with pytest.raises(ConfigError, match=message):
        Parameter("p", kind, None, "").parse(text)


def test_defaults_are_of_their_own_type():
    for parameters in ENTRY_POINTS.values():
        for parameter in parameters:
            assert parameter.default is None or type(parameter.default) is parameter.kind

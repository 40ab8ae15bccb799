"""A quantised conversion may deviate from ONNX Runtime where it is as close to the float model."""

from unittest import mock

import numpy as np
import pytest

from tvmopt.choices import LOW_DTYPES
from tvmopt.compare import QUANTISED_TOLERANCE, deviation, model_tolerance
from tvmopt.errors import AccuracyError
from tvmopt.stages.check import Criteria, Findings, Trial, check_conversion
from tvmopt.stages.convert_check import Check, library_tolerance, with_room_for

_RNG = np.random.default_rng(0)
_FLOAT = _RNG.standard_normal((1, 1000)).astype(np.float32)
_NOISE = [_RNG.standard_normal((1, 1000)).astype(np.float32) for _ in range(2)]


def _check(compiled, quantised, tolerance=QUANTISED_TOLERANCE):
    trial = Trial("data", {"x": _FLOAT}, [_FLOAT], True)
    criteria = Criteria("the conversion to int8 in NCHW", tolerance, 0.9)
    return check_conversion(lambda _: [compiled], [trial], ["y"], criteria, lambda _: [quantised])


def test_two_roundings_of_one_graph_deviate_by_both_errors():
    found = _check(_FLOAT + 0.15 * _NOISE[0], _FLOAT + 0.15 * _NOISE[1])
    assert 0.1 < found.deviation < 0.25


def test_layers_in_bfloat16_may_add_an_error_within_the_tolerance():
    assert _check(_FLOAT + 0.19 * _NOISE[0], _FLOAT + 0.1 * _NOISE[1]).deviation > 0.1


def test_a_larger_error_than_that_of_onnx_runtime_is_a_fault():
    with pytest.raises(AccuracyError, match="output 'y' deviates"):
        _check(_FLOAT + 0.3 * _NOISE[0], _FLOAT + 0.1 * _NOISE[1])


def test_nan_is_a_fault():
    wrong = _FLOAT + 0.15 * _NOISE[0]
    wrong[0, 0] = np.nan
    with pytest.raises(AccuracyError, match="deviates by inf"):
        _check(wrong, _FLOAT + 0.15 * _NOISE[1])


def test_a_float_conversion_has_one_tolerance():
    with pytest.raises(AccuracyError, match="deviates"):
        _check(_FLOAT + 0.15 * _NOISE[0], _FLOAT + 0.15 * _NOISE[1], model_tolerance("float32"))


@pytest.mark.parametrize("dtype", LOW_DTYPES)
def test_the_library_of_a_rounded_model_may_round_otherwise_than_that_of_the_check(dtype):
    assert library_tolerance(dtype).limit >= 0.01


def test_two_libraries_of_a_model_with_errors_may_deviate_by_both():
    one, other = _FLOAT + 0.15 * _NOISE[0], _FLOAT + 0.15 * _NOISE[1]
    room = with_room_for(QUANTISED_TOLERANCE, [one], [_FLOAT])
    assert room.measure == "rms"
    assert deviation(other, one, "rms") <= room.limit < 0.3
    assert deviation(_FLOAT + 0.3 * _NOISE[1], one, "rms") > room.limit


@pytest.mark.parametrize(
    ("dtype", "real", "has_room"),
    [("int8", True, True), ("int8", False, False), ("float32", True, False)],
)
def test_the_golden_tolerance_follows_the_errors_of_a_rounded_model(dtype, real, has_room):
    """On random inputs an int8 model saturates; float32 has exact golden outputs."""
    trial = Trial("data", {"x": _FLOAT}, [_FLOAT], real)
    check = Check.__new__(Check)
    check._model = mock.Mock(trials=[trial], inputs=(), outputs=())
    check._criteria = Criteria("the conversion", QUANTISED_TOLERANCE, 0.9)
    check._dtype, check._rounds_thresholds = dtype, False
    found = check.signature(Findings(None, 1.0, [_FLOAT + 0.15 * _NOISE[0]])).tolerance
    assert (found.limit > QUANTISED_TOLERANCE.limit) == has_room
    assert check.signature(None).tolerance == QUANTISED_TOLERANCE


@pytest.mark.parametrize("error", [0.05, np.nan])
def test_the_tolerance_stays_where_errors_are_small_or_not_finite(error):
    outputs = [_FLOAT, _FLOAT + error * _NOISE[0]]
    assert with_room_for(QUANTISED_TOLERANCE, outputs, [_FLOAT, _FLOAT]) == QUANTISED_TOLERANCE

"""Calls on bound arrays: no copies, own arrays for each thread, clear errors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.threads import in_threads
from tvmopt.errors import ConfigError
from tvmopt.runtime import aligned_empty


def _x(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8), np.float32)


def test_a_bound_call_equals_a_call(conv) -> None:
    [name] = (spec.name for spec in conv.metadata.inputs)
    call = conv.bind()
    for seed in range(3):
        call.inputs[name][...] = _x(seed)
        np.testing.assert_array_equal(call()[0], conv(_x(seed))[0])
    assert call() is call.outputs


def test_arrays_of_the_caller_are_used_in_place(conv) -> None:
    [taken], [given] = conv.metadata.inputs, conv.metadata.outputs
    x, y = aligned_empty(taken.shape, taken.dtype), aligned_empty(given.shape, given.dtype)
    x[...] = _x()
    call = conv.bind({taken.name: x}, {given.name: y})
    assert call()[0] is y
    np.testing.assert_array_equal(y, conv(_x())[0])


def test_threads_with_arrays_of_their_own_run_at_once(conv) -> None:
    [name] = (spec.name for spec in conv.metadata.inputs)
    want = [conv(_x(seed))[0] for seed in range(8)]
    wrong = []

    def run(seed: int) -> None:
        call = conv.bind()
        call.inputs[name][...] = _x(seed)
        for _ in range(50):
            if not np.array_equal(call()[0], want[seed]):
                wrong.append(seed)

    in_threads(run)
    assert wrong == []


def _shifted(shape, dtype) -> np.ndarray:
    return aligned_empty((int(np.prod(shape)) + 1,), dtype)[1:].reshape(shape)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"nothing": np.zeros(1)}, "inputs must be of the model, which has x, but got"),
        ({"x": [1.0]}, "input 'x' must be a NumPy array, but got list"),
        ({"x": np.zeros((1, 3, 8, 8))}, "input 'x' must be float32 of shape"),
        ({"x": np.zeros((2, 3, 8, 8), np.float32)}, "but got float32 of (2, 3, 8, 8)"),
        ({"x": _shifted((1, 3, 8, 8), "float32")}, "start at a multiple of 64 bytes"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(conv, arrays, message) -> None:
    with pytest.raises(ConfigError) as caught:
        conv.bind(arrays)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

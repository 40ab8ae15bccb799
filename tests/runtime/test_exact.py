"""Inputs that need no conversion: the same outputs by fewer steps, and never past a check."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

from tests.threads import in_threads
from tvmopt.errors import ConfigError, EnvironmentSetupError
from tvmopt.runtime import callers, load
from tvmopt.runtime.bound import BoundCall
from tvmopt.runtime.exact import ExactCalls
from tvmopt.runtime.metadata import TensorSpec


def _x(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8), np.float32)


class _Caller:
    """Records the arrays that it is called with."""

    def __init__(self) -> None:
        self.calls = []

    def run(self, arrays):
        self.calls.append([*arrays])
        return "outputs"

    def run_one(self, array):
        return self.run([array])


def _one(*shapes) -> tuple[ExactCalls, _Caller]:
    exact, caller = ExactCalls([TensorSpec("x", (2, 3), "float32")]), _Caller()
    for shape in shapes or ((2, 3),):
        exact.add((shape,), caller)
    return exact, caller


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("inputs", [X, {"x": X}, X.T.copy().T, X.astype("=f4")])
def test_an_array_that_fits_is_run_as_it_is(inputs) -> None:
    exact, caller = _one()
    assert exact.run(inputs) == "outputs"
    [[array]] = caller.calls
    assert array is (inputs["x"] if isinstance(inputs, dict) else inputs)


class _Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "inputs",
    [
        X.astype(">f4"),
        X.astype("float64"),
        X.astype(object),
        X.view(_Subclass),
        X[0],
        X[None],
        np.ones((3, 2), np.float32),
        X.tolist(),
        None,
        {"x": X.tolist()},
        {"y": X},
        {"x": X, "y": X},
        {},
    ],
)
def test_other_inputs_are_left_to_the_checks(inputs) -> None:
    exact, caller = _one()
    assert exact.run(inputs) is None
    assert caller.calls == []


def test_every_size_has_its_caller() -> None:
    exact, first = _one((2, 3), (1, 3))
    second = _Caller()
    exact.add(((5, 3),), second)
    for rows in (1, 2, 5):
        assert exact.run(np.ones((rows, 3), np.float32)) == "outputs"
    assert [len(first.calls), len(second.calls)] == [2, 1]
    assert exact.run(np.ones((3, 3), np.float32)) is None


SEVERAL = {"ids": np.arange(4), "bias": np.ones((4, 8), np.float32)}


def test_several_inputs_come_in_order() -> None:
    specs = [TensorSpec("ids", (4,), "int64"), TensorSpec("bias", (4, 8), "float32")]
    exact, caller = ExactCalls(specs), _Caller()
    exact.add(((4,), (4, 8)), caller)
    assert exact.run(dict(reversed(SEVERAL.items()))) == "outputs"
    assert [array is own for array, own in zip(caller.calls[0], SEVERAL.values(), strict=True)]
    for change in (
        {"bias": SEVERAL["bias"].astype("float64")},
        {"bias": SEVERAL["bias"][:3]},
        {"ids": [0, 1, 2, 3]},
        {"more": X},
    ):
        assert exact.run({**SEVERAL, **change}) is None
    assert exact.run({"ids": SEVERAL["ids"], "other": SEVERAL["bias"]}) is None
    assert exact.run(SEVERAL["ids"]) is None
    assert len(caller.calls) == 1


def test_exact_inputs_of_a_model_skip_the_conversion(conv, two, monkeypatch) -> None:
    pair = {"ids": np.arange(4), "in/bias": SEVERAL["bias"]}
    want = conv(_x().tolist())[0], *two({**pair, "ids": [0, 1, 2, 3]})
    for model in (conv, two):
        monkeypatch.setattr(model, "coded", lambda _: pytest.fail("it was converted"))
    found = conv(_x())[0], *two(pair)
    assert conv({"x": _x()}).keys() == ("y",)
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_size_is_found_at_once_when_it_was_called_before(sizes_bundle, monkeypatch) -> None:
    model = load(sizes_bundle)
    shapes = [(2, 16), (1, 8), (2, 8)]
    wanted = [model(np.full(shape, 0.5, np.float32))[0] for shape in shapes]
    padded = model(np.full((1, 7), 0.5, np.float32))[0]
    converted = []
    coded = model.coded
    monkeypatch.setattr(model, "coded", lambda x: converted.append(x.shape) or coded(x))
    for shape, want in zip(shapes, wanted, strict=True):
        np.testing.assert_array_equal(model(np.full(shape, 0.5, np.float32))[0], want)
        assert want.shape == shape
    assert converted == []
    np.testing.assert_array_equal(model(np.full((1, 7), 0.5, np.float32))[0], padded)
    assert converted == [(1, 7)]
    with pytest.raises(ConfigError, match="must fit a size"):
        model(np.zeros((1, 17), np.float32))


def test_no_more_calls_exist_than_cores(conv_bundle, monkeypatch) -> None:
    monkeypatch.setattr(callers, "usable_cores", lambda: 2)
    made = []

    def counted(*arguments, **named):
        made.append(threading.get_ident())
        return BoundCall(*arguments, **named)

    monkeypatch.setattr(callers, "BoundCall", counted)
    model = load(conv_bundle)
    want = [model(_x(seed))[0] for seed in range(8)]
    wrong = []

    def run(seed: int) -> None:
        for _ in range(100):
            if not np.array_equal(model(_x(seed))[0], want[seed]):
                wrong.append(seed)

    in_threads(run)
    assert wrong == []
    assert 1 <= len(made) <= 2


def test_a_call_that_fails_gives_its_buffers_back(conv_bundle, monkeypatch) -> None:
    monkeypatch.setattr(callers, "usable_cores", lambda: 1)
    model = load(conv_bundle)
    want = model(_x())[0]
    call = model._caller._take()
    function = call.function
    call.function = lambda _: -1
    model._caller._give_back(call)
    for inputs in (_x(), _x().tolist()):
        with pytest.raises(EnvironmentSetupError, match="the threads and memory it needs"):
            model(inputs)
    call.function = function
    np.testing.assert_array_equal(model(_x())[0], want)


def test_outputs_keep_their_names_when_copied(two) -> None:
    outputs = two({"ids": np.arange(4), "in/bias": SEVERAL["bias"]})
    for made in (copy.deepcopy(outputs), pickle.loads(pickle.dumps(outputs))):
        assert made.keys() == ("y", "out/sum")
        np.testing.assert_array_equal(made["out/sum"], outputs[1])

"""Parts of serving in this process: several inputs, internal errors, slow clients, addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import threading
from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
from mlflow.pyfunc import scoring_server
from onnx import helper

import tvmopt
from tests.tracking.serving import ask_app
from tvmopt.errors import ConfigError
from tvmopt.parameters.groups import ServerParameters
from tvmopt.runtime import load
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking import flavor
from tvmopt.tracking.serving import scoring, serve
from tvmopt.tracking.serving.body import read_body
from tvmopt.tracking.serving.refusal import RefusedRequestError
from tvmopt.tracking.serving.request_queue import RequestQueue

INPUTS = (TensorSpec("ids", (4,), "int64"), TensorSpec("in/bias", (4, 8), "float32"))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Set the environment variables of MLflow's server."""
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")


def _two(change=None, **names) -> dict:
    good = {"ids": [0, 1, 2, 3], "in/bias": np.ones((4, 8)).tolist()}
    return {**good, **(change or {}), **names}


class TestSeveralInputs:
    @pytest.fixture(scope="class")
    def app(self, two_input_bundle):
        return serve.scoring_app(load(two_input_bundle), ServerParameters())

    @pytest.mark.parametrize("key", ["inputs", "instances"])
    def test_answers(self, app, two_input_bundle, key):
        data = _two()
        want = load(two_input_bundle)({name: np.array(value) for name, value in data.items()})
        if key == "instances":
            data = [{name: value[i] for name, value in data.items()} for i in range(4)]
        status, answer = ask_app(app, json.dumps({key: data}).encode())
        assert status == 200
        for got, array in zip(answer["predictions"], want, strict=True):
            np.testing.assert_allclose(got, array, atol=1e-4)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([[0, 1, 2, 3]], "'inputs' must name each input: 'ids' (int64 4), 'in/bias' (float32"),
            (_two(extra=1), "0 of them are missing and 1 are unknown"),
            ({"ids": [0, 1, 2, 3]}, "1 of them are missing and 0 are unknown"),
            (_two({"ids": [0, 1, 2]}), "dimension 0 has 3 values instead of 4"),
            (_two({"ids": [0, 1, 2, 3.0]}), "holds a number with a fraction where it must not"),
            (_two({"ids": [0, 1, 2, True]}), "holds true or false where it must not"),
            (_two({"ids": [0, 1, 2, 2**70]}), "a value does not fit that type"),
            (_two({"ids": [0, 1, 2, float("nan")]}), "holds a number with a fraction"),
            (_two({"ids": 3}), "holds a whole number where it must not"),
            (_two({"in/bias": [[1.0] * 8] * 3 + [[1.0] * 7]}), "dimension 1 has 7 values instead"),
        ],
    )
    def test_refuses(self, app, data, message):
        status, answer = ask_app(app, json.dumps({"inputs": data}).encode())
        assert status == 400
        assert message in answer["message"]

    def test_number_of_instances(self, app):
        data = [{"ids": 1, "in/bias": [0.0] * 8}] * 3
        status, answer = ask_app(app, json.dumps({"instances": data}).encode())
        assert status == 400
        assert "must be the number of instances, but there are 3" in answer["message"]


def test_scalars_and_booleans():
    specs = (TensorSpec("s", (), "float32"), TensorSpec("mask", (2,), "bool"))
    read_body(b'{"inputs": {"s": 1.5, "mask": [true, false]}}', specs)
    for wrong in (b'{"s": [1.5], "mask": [true, false]}', b'{"s": 1.5, "mask": [1, 0]}'):
        with pytest.raises(RefusedRequestError, match="where it must not"):
            read_body(b'{"inputs": %s}' % wrong, specs)
    with pytest.raises(RefusedRequestError, match="must be the number of instances"):
        read_body(b'{"instances": [{"s": 1.5, "mask": true}]}', specs)


def test_nesting_that_passes_the_count():
    spec = TensorSpec("x", (1, 3, 8, 8), "float32")
    with pytest.raises(RefusedRequestError, match="is nested too deeply"):
        read_body(b'{"inputs": ' + b"[" * 1400 + b"]" * 1400 + b"}", (spec,))


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"ab",', b"0.1,"])
def test_bodies_that_expand_when_parsed(monkeypatch, part):
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(RefusedRequestError, match="but has more than 240 commas"):
        read_body(b'{"inputs": [' + part * 5000 + b"0]}", INPUTS)


@pytest.mark.parametrize("shape", [(1,), (5, 1, 1, 1), (1, 1, 1, 3), (2, 3, 4), (7, 1)])
@pytest.mark.parametrize("name", ["x", "a,b[0],{"])
def test_good_bodies_pass_the_count(shape, name):
    value = np.zeros(shape).tolist()
    instances = [{name: item} for item in value]
    for data in ({"inputs": {name: value}}, {"inputs": value}, {"instances": instances}):
        read_body(json.dumps(data).encode(), (TensorSpec(name, shape, "float32"),))


OPEN = (TensorSpec("ids", (-1, -1), "int64"), TensorSpec("x", (-1, -1, 2), "float32"))


def _open(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length).reshape(rows, length)
    return {"ids": ids, "x": np.stack([ids, -ids], axis=-1).astype(np.float32)}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("key", ["inputs", "instances"])
def test_open_extents_take_any_number(rows, length, key):
    wanted = _open(rows, length)
    data = {name: array.tolist() for name, array in wanted.items()}
    if key == "instances":
        data = [{name: value[row] for name, value in data.items()} for row in range(rows)]
    found = read_body(json.dumps({key: data}).encode(), OPEN)
    assert found.keys() == wanted.keys()
    for spec in OPEN:
        np.testing.assert_array_equal(found[spec.name], wanted[spec.name])
        assert found[spec.name].dtype == spec.dtype


def test_open_extents_behind_a_static_one():
    spec = TensorSpec("x", (2, -1), "float32")
    assert read_body(b'{"inputs": [[1, 2, 3], [4, 5, 6]]}', (spec,))["x"].shape == (2, 3)
    assert read_body(b'{"instances": [{"x": [1]}, {"x": [2]}]}', (spec,))["x"].shape == (2, 1)
    with pytest.raises(RefusedRequestError, match="dimension 0 has 1 values instead of 2"):
        read_body(b'{"inputs": [[1, 2, 3]]}', (spec,))
    with pytest.raises(RefusedRequestError, match=r"number of instances, but there are 3, .*2xn"):
        read_body(b'{"instances": [{"x": [1]}, {"x": [1]}, {"x": [1]}]}', (spec,))


_ROWS = "every input must be a list of as many rows, at least one, but they are not"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ids": [[1, 2, 3], [4, 5]]},
            "input 'ids' must be int64 of shape 2x3, but dimension 1 has 2 values instead of 3",
        ),
        ({"ids": [[1], [4, 5]]}, "of shape 2x1, but dimension 1 has 2 values instead of 1"),
        ({"ids": [[], [4]]}, "of shape 2x1, but dimension 1 has 0 values instead of 1"),
        ({"ids": [[], []]}, "of shape 2x1, but dimension 1 has 0 values instead of 1"),
        ({"ids": [[1, 2], 3]}, "of shape 2x2, but holds a whole number where it must not"),
        ({"ids": [1, 2]}, "of shape 2x1, but holds a whole number where it must not"),
        ({"ids": [[[1]], [[2]]]}, "of shape 2x1, but holds a list where it must not"),
        ({"ids": [[1], None]}, "of shape 2x1, but holds null where it must not"),
        ({"ids": [{}, {}]}, "of shape 2x1, but holds an object where it must not"),
        (
            {"x": [[[1, 2], [3, 4]], [[5, 6]]]},
            "input 'x' must be float32 of shape 2x2x2, but dimension 1 has 1 values instead of 2",
        ),
        ({"x": [[[1, 2, 3]], [[1, 2, 3]]]}, "of shape 2x1x2, but dimension 2 has 3 values instead"),
        ({"ids": [[1, 2]]}, _ROWS),
        ({"ids": [], "x": []}, _ROWS),
        ({"ids": 1, "x": 1}, _ROWS),
    ],
)
def test_ragged_lists_are_refused(change, message):
    good = {name: array.tolist() for name, array in _open(2, 3).items()}
    with pytest.raises(RefusedRequestError) as caught:
        read_body(json.dumps({"inputs": {**good, **change}}).encode(), OPEN)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"ids": [1]}, "'ids' must be int64 of shape 2x2, but dimension 1 has 1 values instead"),
        ({"x": [[1, 2]] * 3}, "of shape 2x2x2, but dimension 1 has 3 values instead of 2"),
        ({"ids": 1}, "'ids' must be int64 of shape 2x2, but holds a whole number where it must"),
        ({"other": 1}, "the inputs must be exactly 'ids' (int64 nxn), 'x' (float32 nxnx2), but 0"),
    ],
)
def test_instances_of_other_lengths_are_refused(second, message):
    good = {"ids": [1, 2], "x": [[1, 2], [3, 4]]}
    body = json.dumps({"instances": [good, {**good, **second}]}).encode()
    with pytest.raises(RefusedRequestError) as caught:
        read_body(body, OPEN)
    assert message in str(caught.value)


class TestSeveralSizes:
    """A model of several sizes answers requests of any, and says which it lacks."""

    @pytest.fixture(scope="class")
    def app(self, make_model):
        node = helper.make_node("Relu", ["x"], ["y"])
        shape = "float32", ["n", "s"]
        model = make_model([node], {"x": shape}, {"y": shape}, {})
        compiled = tvmopt.compile(model, "n=4,1;s=4,8", threads=1)
        return serve.scoring_app(compiled, ServerParameters())

    @pytest.mark.parametrize(("rows", "length"), [(1, 4), (1, 3), (3, 8), (9, 5)])
    @pytest.mark.parametrize("key", ["inputs", "instances"])
    def test_answers(self, app, rows, length, key):
        x = np.random.default_rng(rows).integers(-9, 9, (rows, length))
        data = x.tolist() if key == "inputs" else [{"x": row} for row in x.tolist()]
        status, answer = ask_app(app, json.dumps({key: data}).encode())
        assert status == 200
        np.testing.assert_array_equal(answer["predictions"], np.maximum(x, 0))

    def test_refuses_a_length_that_no_size_has(self, app):
        status, answer = ask_app(app, json.dumps({"inputs": [[1.0] * 9]}).encode())
        assert status == 400
        assert "compiled for (x:4x8; x:4x4; x:1x8; x:1x4), but got x:1x9" in answer["message"]


def test_requests_of_other_lengths_are_not_joined():
    shapes: list[tuple[int, ...]] = []
    go = threading.Event()

    def double(inputs):
        go.wait(20)
        shapes.append(inputs["x"].shape)
        return [inputs["x"] * 2]

    async def work() -> None:
        queue = RequestQueue(double, 8, 1, 100, 0.0)
        asked = [np.full((rows, length), rows, np.float32) for rows, length in waiting]
        first = asyncio.ensure_future(queue.outputs({"x": np.zeros((1, 1), np.float32)}))
        await asyncio.sleep(0.05)  # it occupies the model
        futures = [asyncio.ensure_future(queue.outputs({"x": x})) for x in asked]
        await asyncio.sleep(0.05)
        go.set()
        await first
        for x, [y] in zip(asked, await asyncio.gather(*futures), strict=True):
            np.testing.assert_array_equal(y, x * 2)
        queue.close()

    waiting = [(1, 3), (2, 3), (1, 5), (1, 5), (1, 3), (2, 3), (6, 3)]
    asyncio.run(asyncio.wait_for(work(), 60))
    assert shapes == [(1, 1), (3, 3), (2, 5), (3, 3), (6, 3)]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("require_finite", ["auto", "true", "false"])
def test_non_finite_values(conv_bundle, value, require_finite):
    model = load(conv_bundle)
    app = serve.scoring_app(model, ServerParameters(require_finite=require_finite))
    x = np.zeros((1, 3, 8, 8), np.float32)
    x[0, 0, 0, 0] = float(value)
    status, answer = ask_app(app, json.dumps({"inputs": x.tolist()}).encode())
    if require_finite != "false":
        assert status == 400
        assert "1 of 192 values are NaN or infinite" in answer["message"]
    else:
        assert status == 200
        np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), model(x)[0])
        assert not np.isfinite(answer["predictions"]).all()


class _Broken:
    """A model with an internal error that no request can cause."""

    def __init__(self, model, error):
        self.metadata = model.metadata
        self._error = error

    def __call__(self, inputs):
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("in /home/me/x.py"), MemoryError(), OSError(5)])
def test_an_internal_error_is_500_in_one_line_with_a_logged_traceback(conv_bundle, error, caplog):
    app = serve.scoring_app(_Broken(load(conv_bundle), error), ServerParameters())
    with caplog.at_level(logging.ERROR, scoring.__name__):
        status, answer = ask_app(
            app, json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode()
        )
    assert status == 500
    assert answer == {
        "error_code": "INTERNAL_SERVER_ERROR",
        "message": "the server failed; its log says why",
    }
    [record] = [r for r in caplog.records if r.name == scoring.__name__]
    assert record.exc_info[1] is error


def test_slow_body(conv_bundle, monkeypatch):
    monkeypatch.setattr(scoring, "_BODY_TIMEOUT_S", 0.2)
    app = serve.scoring_app(load(conv_bundle), ServerParameters())
    status, answer = ask_app(app, *[b" "] * 50, pause=0.02)
    assert status == 408
    assert answer["message"] == "the body must arrive within 0.2 s"


def test_limit_follows_the_model(conv_bundle):
    metadata = load(conv_bundle).metadata
    assert serve._most_bytes(metadata) == 192 * 64 + 65536
    longest = json.dumps({"inputs": np.full((1, 3, 8, 8), -1.2345678901234567e-300).tolist()})
    assert len(longest) < serve._most_bytes(metadata)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"name": "a/b"}, "name must start with"),
        ({"name": "a", "port": "65536"}, "port must be 0 to 65535, but got 65536"),
        ({"name": "a", "port": "-1"}, "port must be 0 to 65535, but got -1"),
        ({"name": "a", "max_request_mb": "-2"}, "max_request_mb must be at least 0, but got -2"),
        (
            {"name": "a", "require_finite": "maybe"},
            "require_finite must be one of auto, true, false",
        ),
    ],
)
def test_wrong_parameters(refuse, params, message):
    refuse("serve", params, message)


def test_address_that_cannot_be_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"a free port, but got '127.0.0.1' and {port} \("):
            serve._listen("127.0.0.1", port)
    for host in ("192.0.2.1", "a..b", "no-such-host.invalid", "x" * 300):
        with pytest.raises(ConfigError, match="host and port must be an address of this machine"):
            serve._listen(host, 0)
    for host in ("127.0.0.1", "localhost"):
        serve._listen(host, 0).close()


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_public_address_gives_a_warning(host, warns, conv_bundle, monkeypatch, capsys):
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(serve, "open_store", lambda: None)
    monkeypatch.setattr(serve, "find_version", lambda *_: SimpleNamespace(version="1"))
    monkeypatch.setattr(flavor, "load_model", lambda uri: load(conv_bundle))
    monkeypatch.setattr(serve, "_run_until_ended", lambda app, listener: None)
    serve.serve("conv", host=host, port=0)
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == warns
    assert said.err.startswith("warning: 0.0.0.0 is no loopback address") == warns
    assert re.search(r"http://[0-9.]+:[1-9]\d*/invocations", said.out)


class TestMlflowModelsServe:
    """In MLflow's own server, an input that the model rejects gets 400 without a stack trace."""

    @pytest.fixture(scope="class")
    def saved(self, conv_bundle, tmp_path_factory):
        path = tmp_path_factory.mktemp("saved") / "model"
        flavor.save_model(conv_bundle, path)
        return path

    @pytest.fixture
    def app(self, saved, monkeypatch):
        config = json.dumps({"require_finite": True})
        monkeypatch.setenv(scoring_server.SERVING_MODEL_CONFIG, config)
        return scoring_server.init(scoring_server.load_model_with_mlflow_config(str(saved)))

    def test_require_finite(self, app):
        x = np.zeros((1, 3, 8, 8))
        assert ask_app(app, json.dumps({"inputs": x.tolist()}).encode())[0] == 200
        x[0, 0, 0, 0] = np.nan
        status, answer = ask_app(app, json.dumps({"inputs": x.tolist()}).encode())
        assert status == 400
        assert answer["message"].endswith("1 of 192 values are NaN or infinite")
        assert "stack_trace" not in answer

    def test_wrong_shape(self, app):
        status, answer = ask_app(app, json.dumps({"inputs": [[1.0]]}).encode())
        assert status == 400
        assert "stack_trace" not in answer


def test_the_error_has_mlflows_and_our_class(conv_bundle):
    model = flavor.CompiledPyFunc(load(conv_bundle))
    with pytest.raises(ConfigError, match="must have shape") as caught:
        model.predict(np.zeros((1, 2)))
    assert isinstance(caught.value, mlflow.exceptions.MlflowException)
    assert caught.value.get_http_status_code() == 400
    assert os.linesep not in str(caught.value)

"""Parts of serving in this process: several inputs, internal errors, slow clients, addresses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import re
import socket
import threading
import time
from types import SimpleNamespace

import mlflow
import numpy as np
import onnx
import pytest
from mlflow.pyfunc import scoring_server

import tvmopt
from tvmopt.errors import ConfigError
from tvmopt.parameters.groups import ServerParameters
from tvmopt.runtime import load
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking import flavor
from tvmopt.tracking.serving import scoring, serve
from tvmopt.tracking.serving.body import read_body
from tvmopt.tracking.serving.refusal import RefusedRequestError

INPUTS = (TensorSpec("ids", (4,), "int64"), TensorSpec("in/bias", (4, 8), "float32"))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Set the environment variables of MLflow's server."""
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")


def _ask(app, *bodies: bytes, path="/invocations", kind="application/json", pause=0.0):
    """Call an ASGI application with body parts; return status and JSON of the answer."""
    sent = []
    parts = list(bodies)

    async def receive():
        if not parts:
            await asyncio.sleep(60)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(b"content-type", kind.encode())], "client": None, "server": None,
        "asgi": {"version": "3.0"}, "state": {},
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    text = b"".join(message.get("body", b"") for message in sent).decode()
    assert sent[0]["type"] == "http.response.start"
    return sent[0]["status"], json.loads(text)


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
        status, answer = _ask(app, json.dumps({key: data}).encode())
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
        status, answer = _ask(app, json.dumps({"inputs": data}).encode())
        assert status == 400
        assert message in answer["message"]

    def test_number_of_instances(self, app):
        data = [{"ids": 1, "in/bias": [0.0] * 8}] * 3
        status, answer = _ask(app, json.dumps({"instances": data}).encode())
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


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("require_finite", [True, False])
def test_non_finite_values(conv_bundle, value, require_finite):
    model = load(conv_bundle)
    app = serve.scoring_app(model, ServerParameters(require_finite=require_finite))
    x = np.zeros((1, 3, 8, 8), np.float32)
    x[0, 0, 0, 0] = float(value)
    status, answer = _ask(app, json.dumps({"inputs": x.tolist()}).encode())
    if require_finite:
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
        status, answer = _ask(app, json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode())
    assert status == 500
    assert answer == {
        "error_code": "INTERNAL_SERVER_ERROR",
        "message": "the server failed; its log says why",
    }
    [record] = [r for r in caplog.records if r.name == scoring.__name__]
    assert record.exc_info[1] is error


class _Held:
    """A model whose calls do not end before ``go`` is set."""

    def __init__(self, model):
        self.metadata, self._model = model.metadata, model
        self.go = threading.Event()

    def __call__(self, inputs):
        self.go.wait(20)
        return self._model(inputs)


def _scope() -> dict:
    return {
        "type": "http", "method": "POST", "path": "/invocations",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip


async def _post(app, body: bytes, then: str = "") -> list[dict]:
    """Send a request; the messages of the answer. ``then`` is what the connection tells next."""
    sent: list[dict] = []
    parts = [{"type": "http.request", "body": body}, *([{"type": then}] if then else [])]

    async def receive():
        if not parts:
            await asyncio.sleep(60)
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    await app(_scope(), receive, send)
    return sent


def test_a_full_queue_says_503_and_when_to_come_again(conv_bundle):
    held = _Held(load(conv_bundle))
    held.metadata = dataclasses.replace(held.metadata, threads=1)
    app = serve.scoring_app(held, ServerParameters(max_waiting=1))
    body = json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode()

    async def ask():
        first, second = (asyncio.ensure_future(_post(app, body)) for _ in range(2))
        await asyncio.sleep(0.1)  # one runs, one waits
        refused = await _post(app, body)
        held.go.set()
        return refused, await first, await second

    refused, *answered = asyncio.run(ask())
    assert refused[0]["status"] == 503
    assert (b"retry-after", b"1") in refused[0]["headers"]
    assert b"at most 1 requests may wait" in refused[1]["body"]
    assert [sent[0]["status"] for sent in answered] == [200, 200]


def test_a_client_that_goes_away_gets_no_answer(conv_bundle):
    held = _Held(load(conv_bundle))
    app = serve.scoring_app(held, ServerParameters())
    body = json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode()
    try:
        assert asyncio.run(asyncio.wait_for(_post(app, body, "http.disconnect"), 10)) == []
    finally:
        held.go.set()


def test_an_answer_that_takes_too_long_is_504(conv_bundle, monkeypatch):
    monkeypatch.setenv("MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "1")
    held = _Held(load(conv_bundle))
    app = serve.scoring_app(held, ServerParameters())
    try:
        status, answer = _ask(app, json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode())
        assert status == 504
        assert "REQUEST_TIMEOUT, 1 seconds" in answer["message"]
    finally:
        held.go.set()


@pytest.fixture(scope="module", params=[1, 4])
def of_rows(request):
    """A model compiled for 1 or 4 rows that takes any number: y = x w + z."""
    w = onnx.numpy_helper.from_array(np.eye(5, 4, dtype=np.float32), "w")
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["m"]),
        onnx.helper.make_node("Add", ["m", "z"], ["y"]),
    ]
    x, z, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 5), ("z", 4), ("y", 4))
    )
    graph = onnx.helper.make_graph(nodes, "rows", [x, z], [y], [w])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )
    return tvmopt.compile(model, {"x": (request.param, 5), "z": (request.param, 4)})


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("key", ["inputs", "instances"])
def test_any_number_of_rows(of_rows, rows, key):
    app = serve.scoring_app(of_rows, ServerParameters())
    rng = np.random.default_rng(rows)
    data = {"x": rng.random((rows, 5)).tolist(), "z": rng.random((rows, 4)).tolist()}
    value = data
    if key == "instances":
        value = [{"x": x, "z": z} for x, z in zip(data["x"], data["z"], strict=True)]
    status, answer = _ask(app, json.dumps({key: value}).encode())
    assert status == 200
    want = np.array(data["x"])[:, :4] + data["z"]
    np.testing.assert_allclose(answer["predictions"], want, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([], "every input must be a list of as many rows, at least one"),
        (3, "every input must be a list of as many rows"),
        (None, "every input must be a list of as many rows"),
        ([[0.0] * 5], "every input must be a list of as many rows"),
        ([[0.0] * 5, [0.0] * 4], "float32 of shape 2x5, but dimension 1 has 4 values instead of 5"),
        ([[0.0] * 5, "a"], "holds text where it must not"),
    ],
)
def test_rows_that_do_not_fit(of_rows, x, message):
    app = serve.scoring_app(of_rows, ServerParameters())
    body = json.dumps({"inputs": {"x": x, "z": [[0.0] * 4] * 2}}).encode()
    status, answer = _ask(app, body)
    assert status == 400
    assert message in answer["message"]


def test_requests_of_a_model_with_rows_are_joined(of_rows):
    calls = []

    class Counted:
        metadata = of_rows.metadata

        def __call__(self, inputs):
            calls.append(len(inputs["x"]))
            time.sleep(0.2)
            return of_rows(inputs)

    app = serve.scoring_app(Counted(), ServerParameters(max_batch=8))
    bodies = [
        json.dumps({"inputs": {"x": [[float(n)] * 5], "z": [[0.0] * 4]}}).encode()
        for n in range(12)
    ]

    async def all_at_once():
        return await asyncio.gather(*(_post(app, body) for body in bodies))

    for n, sent in enumerate(asyncio.run(all_at_once())):
        assert json.loads(sent[1]["body"])["predictions"] == [[float(n)] * 4]
    assert sum(calls) == 12
    assert len(calls) <= 2 + of_rows.metadata.threads


def test_slow_body(conv_bundle, monkeypatch):
    monkeypatch.setattr(scoring, "_BODY_TIMEOUT_S", 0.2)
    app = serve.scoring_app(load(conv_bundle), ServerParameters())
    status, answer = _ask(app, *[b" "] * 50, pause=0.02)
    assert status == 408
    assert answer["message"] == "the body must arrive within 0.2 s"


def test_limit_of_rows_follows_the_model(of_rows):
    rows = of_rows.metadata.inputs[0].shape[0]
    assert serve._most_bytes(of_rows.metadata) == 256 * 9 * 64 + 65536
    wide = [dataclasses.replace(spec, shape=(rows, 10**6)) for spec in of_rows.metadata.inputs]
    model = dataclasses.replace(of_rows.metadata, inputs=tuple(wide))
    assert serve._most_bytes(model) == 2 * rows * 10**6 * 64 + 65536


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
        ({"name": "a", "require_finite": "maybe"}, "require_finite must be true or false"),
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
        assert _ask(app, json.dumps({"inputs": x.tolist()}).encode())[0] == 200
        x[0, 0, 0, 0] = np.nan
        status, answer = _ask(app, json.dumps({"inputs": x.tolist()}).encode())
        assert status == 400
        assert answer["message"].endswith("1 of 192 values are NaN or infinite")
        assert "stack_trace" not in answer

    def test_wrong_shape(self, app):
        status, answer = _ask(app, json.dumps({"inputs": [[1.0]]}).encode())
        assert status == 400
        assert "stack_trace" not in answer


def test_the_error_has_mlflows_and_our_class(conv_bundle):
    model = flavor.CompiledPyFunc(load(conv_bundle))
    with pytest.raises(ConfigError, match="must have shape") as caught:
        model.predict(np.zeros((1, 2)))
    assert isinstance(caught.value, mlflow.exceptions.MlflowException)
    assert caught.value.get_http_status_code() == 400
    assert os.linesep not in str(caught.value)

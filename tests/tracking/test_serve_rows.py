"""Serving in this process: requests that wait, time limits, any number of rows."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time

import numpy as np
import onnx
import pytest

import tvmopt
from tests.tracking.serving import ask_app, post
from tvmopt.parameters.groups import ServerParameters
from tvmopt.runtime import load
from tvmopt.tracking.serving import serve


class _Held:
    """A model whose calls do not end before ``go`` is set."""

    def __init__(self, model):
        self.metadata, self._model = model.metadata, model
        self.go = threading.Event()

    def __call__(self, inputs):
        self.go.wait(20)
        return self._model(inputs)


def test_a_full_queue_says_503_and_when_to_come_again(conv_bundle):
    held = _Held(load(conv_bundle))
    held.metadata = dataclasses.replace(held.metadata, threads=1)
    app = serve.scoring_app(held, ServerParameters(max_waiting=1))
    body = json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode()

    async def ask():
        first, second = (asyncio.ensure_future(post(app, body)) for _ in range(2))
        await asyncio.sleep(0.1)  # one runs, one waits
        refused = await post(app, body)
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
        assert asyncio.run(asyncio.wait_for(post(app, body, "http.disconnect"), 10)) == []
    finally:
        held.go.set()


def test_an_answer_that_takes_too_long_is_504(conv_bundle, monkeypatch):
    monkeypatch.setenv("MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "1")
    held = _Held(load(conv_bundle))
    app = serve.scoring_app(held, ServerParameters())
    try:
        status, answer = ask_app(
            app, json.dumps({"inputs": np.zeros((1, 3, 8, 8)).tolist()}).encode()
        )
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
    status, answer = ask_app(app, json.dumps({key: value}).encode())
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
    status, answer = ask_app(app, body)
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
        return await asyncio.gather(*(post(app, body) for body in bodies))

    for n, sent in enumerate(asyncio.run(all_at_once())):
        assert json.loads(sent[1]["body"])["predictions"] == [[float(n)] * 4]
    assert sum(calls) == 12
    assert len(calls) <= 2 + of_rows.metadata.threads


def test_limit_of_rows_follows_the_model(of_rows):
    rows = of_rows.metadata.inputs[0].shape[0]
    assert serve._most_bytes(of_rows.metadata) == 256 * 9 * 64 + 65536
    wide = [dataclasses.replace(spec, shape=(rows, 10**6)) for spec in of_rows.metadata.inputs]
    model = dataclasses.replace(of_rows.metadata, inputs=tuple(wide))
    assert serve._most_bytes(model) == 2 * rows * 10**6 * 64 + 65536

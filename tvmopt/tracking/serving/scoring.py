"""A scoring server with MLflow's protocol, as an ASGI application.

MLflow's own server has no size limit, answers malformed requests with status 500, puts stack traces
and parts of the request into its answers, and takes milliseconds for a request. Here a request is
checked first, its JSON is read once, and an error is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from mlflow import __version__
from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT

from tvmopt.errors import ConfigError
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking.flavor.python_model import check_finite
from tvmopt.tracking.serving.body import read_body
from tvmopt.tracking.serving.refusal import RefusedRequestError
from tvmopt.tracking.serving.request_queue import Inputs, RequestQueue

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_METHODS = {"/invocations": "POST", "/ping": "GET", "/health": "GET", "/version": "GET"}
_JSON = b"application/json"
_BODY_TIMEOUT_S = 60.0
# A body of less is read, or written, in less time than a switch to a thread takes.
_QUICK_BYTES = 16384
_BYTES_PER_VALUE = 20
_logger = logging.getLogger(__name__)


class _ClientGoneError(Exception):
    """The connection was closed before the body was whole; nobody waits for an answer."""


class ScoringServer:
    """Answer requests as MLflow's scoring server does, with the outputs of a model.

    Args:
        queue: Calls the model.
        model: Describes the model.
        most_bytes: Largest body of a request.
        require_finite: Whether inputs and outputs with NaN or infinities are refused.
    """

    def __init__(
        self,
        queue: RequestQueue,
        model: ModelMetadata,
        most_bytes: int,
        require_finite: bool,
    ) -> None:
        self._queue, self._model = queue, model
        self._inputs = model.open_inputs
        self._most_bytes, self._require_finite = most_bytes, require_finite

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the server must be given HTTP requests, but got {scope['type']!r}")
        try:
            self._check_head(scope)
            if scope["method"] == "GET":
                content = __version__.encode() if scope["path"] == "/version" else b"\n"
            else:
                content = await self._predictions(receive)
        except _ClientGoneError:
            return
        except RefusedRequestError as error:
            await _refuse(send, error.status, str(error), scope)
        except ConfigError as error:  # of the values, or of the model
            await _refuse(send, HTTPStatus.BAD_REQUEST, str(error), scope)
        except Exception:  # the boundary of a request: the server goes on
            _logger.exception("the model failed on a request")
            said = "the server failed; its log says why"
            await _refuse(send, HTTPStatus.INTERNAL_SERVER_ERROR, said, scope)
        else:
            await _answer(send, HTTPStatus.OK, content, [])

    async def _predictions(self, receive: Receive) -> bytes:
        body = await self._read(receive)
        if len(body) < _QUICK_BYTES:
            inputs = self._arrays(body)
        else:  # in a thread: a large body must not keep others waiting
            inputs = await asyncio.to_thread(self._arrays, body)
        outputs = self._queue.outputs_at_once(inputs)
        if outputs is None:
            outputs = await self._outputs(inputs, receive)
        self._check_finite("output", self._model.outputs, outputs)
        if sum(array.size for array in outputs) * _BYTES_PER_VALUE < _QUICK_BYTES:
            return _content(outputs)
        return await asyncio.to_thread(_content, outputs)

    def _arrays(self, body: bytes) -> dict[str, np.ndarray]:
        inputs = read_body(body, self._inputs)
        self._check_finite("input", self._model.inputs, list(inputs.values()))
        return inputs

    def _check_finite(
        self, what: str, specs: Sequence[TensorSpec], arrays: Sequence[np.ndarray]
    ) -> None:
        if not self._require_finite:
            return
        for spec, array in zip(specs, arrays, strict=True):
            check_finite(f"{what} {spec.name!r}", array)

    async def _outputs(self, inputs: Inputs, receive: Receive) -> Sequence[np.ndarray]:
        """Return the outputs; give up when the client goes, or after MLflow's time limit."""
        timeout = MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get()
        answer = asyncio.ensure_future(self._queue.outputs(inputs))
        gone = asyncio.ensure_future(_end_of(receive))
        try:
            await asyncio.wait({answer, gone}, timeout=timeout, return_when="FIRST_COMPLETED")
            if answer.done():
                return answer.result()
            if gone.done():
                raise _ClientGoneError
            raise RefusedRequestError(
                "the answer took longer than MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT, "
                f"{timeout} seconds",
                HTTPStatus.GATEWAY_TIMEOUT,
            )
        finally:
            answer.cancel()
            gone.cancel()

    def _check_head(self, scope: Message) -> None:
        method = _METHODS.get(scope["path"])
        if method is None:
            raise RefusedRequestError(
                f"the path must be one of {', '.join(_METHODS)}", HTTPStatus.NOT_FOUND
            )
        if scope["method"] != method:
            raise RefusedRequestError(
                f"the method for {scope['path']} must be {method}", HTTPStatus.METHOD_NOT_ALLOWED
            )
        if method == "GET":
            return
        kinds = [kind.translate(None, b' "') for kind in _headers(scope, b"content-type")]
        if kinds not in ([_JSON], [_JSON + b";charset=utf-8"]):
            raise RefusedRequestError(
                "the header Content-Type must be application/json (in UTF-8), but it "
                + ("is another one" if kinds else "is missing"),
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        if set(_headers(scope, b"content-encoding")) - {b"identity"}:
            raise RefusedRequestError(
                "the body must be sent as it is, without Content-Encoding",
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        if any(int(value) > self._most_bytes for value in _headers(scope, b"content-length")):
            raise self._too_large()

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _ClientGoneError
                    body += message.get("body", b"")
                    if len(body) > self._most_bytes:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise RefusedRequestError(
                f"the body must arrive within {_BODY_TIMEOUT_S:g} s", HTTPStatus.REQUEST_TIMEOUT
            ) from error
        return bytes(body)

    def _too_large(self) -> RefusedRequestError:
        return RefusedRequestError(
            f"the body must have at most {self._most_bytes} bytes, but has more; the parameter "
            "max_request_mb of the server raises that limit",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )


def _content(outputs: Sequence[np.ndarray]) -> bytes:
    """Return the body of an answer, as MLflow writes it."""
    lists = [array.tolist() for array in outputs]
    return json.dumps({"predictions": lists[0] if len(lists) == 1 else lists}).encode()


async def _end_of(receive: Receive) -> None:
    """Return when the connection has ended."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: HTTPStatus, message: str, scope: Message) -> None:
    content = json.dumps({"error_code": status.name, "message": message}).encode() + b"\n"
    headers = []
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append((b"allow", _METHODS[scope["path"]].encode()))
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    await _answer(send, status, content, headers)


async def _answer(
    send: Send, status: HTTPStatus, content: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    size = (b"content-length", str(len(content)).encode())
    whole = [(b"content-type", _JSON), size, *headers]
    await send({"type": "http.response.start", "status": int(status), "headers": whole})
    await send({"type": "http.response.body", "body": content})


def _headers(scope: Message, name: bytes) -> list[bytes]:
    return [value.strip().lower() for key, value in scope["headers"] if key == name]

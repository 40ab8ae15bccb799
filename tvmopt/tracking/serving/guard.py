"""ASGI middleware that validates requests before MLflow's scoring server.

MLflow's server has no size limit, answers malformed requests with status 500, and puts stack traces
and parts of the request into its answers. Here a request is checked first, and every answer that is
an error becomes one line of JSON of our own.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from tvmopt.errors import ConfigError
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.tracking.serving.body import RefusedRequestError, check_body, in_words

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_METHODS = {"/invocations": "POST", "/ping": "GET", "/health": "GET", "/version": "GET"}
_JSON = b"application/json"
_BODY_TIMEOUT_S = 60.0
_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Call:
    """Outcome of one request in the model.

    Attributes:
        reached: Whether MLflow called the model.
        refusal: Why the model refused the inputs.
    """

    reached: bool = False
    refusal: str = ""


_CALL: contextvars.ContextVar[_Call] = contextvars.ContextVar("_CALL")


class _ClientGoneError(Exception):
    """The connection was closed before the body was whole; nobody waits for an answer."""


class _Predictor(Protocol):
    def predict(self, data: Any) -> Any: ...


class WatchedModel:
    """A pyfunc implementation that tells :class:`ServingGuard` what became of a call.

    MLflow answers 400 for every exception of a model, with a stack trace.

    Args:
        model: The implementation that is called.
    """

    def __init__(self, model: _Predictor) -> None:
        self._model = model

    def predict(self, data: Any) -> Any:
        """Return the outputs of the model."""
        call = _CALL.get()
        call.reached = True
        try:
            return self._model.predict(data)
        except ConfigError as error:
            call.refusal = str(error)
            raise
        except Exception:
            _logger.exception("the model failed on a request")
            raise


class ServingGuard:
    """Check requests, hand them to MLflow's scoring server, and rewrite its errors.

    Args:
        app: MLflow's scoring server around a :class:`WatchedModel`.
        inputs: Inputs of the model.
        most_bytes: Largest body of a request.
    """

    def __init__(self, app: App, inputs: Sequence[TensorSpec], most_bytes: int) -> None:
        self._app = app
        self._inputs = tuple(inputs)
        self._most_bytes = most_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the server must be given HTTP requests, but got {scope['type']!r}")
        body = b""
        try:
            self._check_head(scope)
            if scope["method"] == "POST":
                body = await self._read(receive)
                # In a thread: a large body must not keep others waiting.
                await asyncio.to_thread(check_body, body, self._inputs)
        except _ClientGoneError:
            return
        except RefusedRequestError as error:
            await _answer(send, error.status, str(error), scope)
            return
        await self._forward(scope, body, receive, send)

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

    async def _forward(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        status = 0
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()  # the end of the connection
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def pass_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if status < HTTPStatus.BAD_REQUEST:
                await send(message)

        call = _Call()
        token = _CALL.set(call)
        # MLflow knows one spelling of the type.
        headers = [(b"content-type", _JSON)] if scope["method"] == "POST" else []
        try:
            await self._app({**scope, "headers": headers}, replay, pass_on)
        except Exception:
            _logger.exception("MLflow's scoring server failed on a request")
            if 0 < status < HTTPStatus.BAD_REQUEST:  # an answer has begun
                raise
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        finally:
            _CALL.reset(token)
        if status >= HTTPStatus.BAD_REQUEST:
            await _answer(send, *self._verdict(HTTPStatus(status), call), scope)

    def _verdict(self, status: HTTPStatus, call: _Call) -> tuple[HTTPStatus, str]:
        """Return status and message of an error: of the client, or of the server."""
        if call.refusal:
            return HTTPStatus.BAD_REQUEST, call.refusal
        if status is HTTPStatus.GATEWAY_TIMEOUT:
            return status, "the answer took longer than MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT"
        if call.reached:
            return HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why"
        if not HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            status = HTTPStatus.BAD_REQUEST
        return status, f"the inputs do not fit the model, which takes {in_words(self._inputs)}"


async def _answer(send: Send, status: HTTPStatus, message: str, scope: Message) -> None:
    content = json.dumps({"error_code": status.name, "message": message}).encode() + b"\n"
    headers = [
        (b"content-type", _JSON),
        (b"content-length", str(len(content)).encode()),
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append((b"allow", _METHODS[scope["path"]].encode()))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _headers(scope: Message, name: bytes) -> list[bytes]:
    return [value.strip().lower() for key, value in scope["headers"] if key == name]

"""A model server process for tests: requests, and the outputs of ONNX Runtime."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import socket
import subprocess

import numpy as np

NAME = "conv"
JSON = {"Content-Type": "application/json"}
SHAPE = (1, 3, 8, 8)


@dataclasses.dataclass
class Server:
    """A server process, its address, samples, and the outputs of ONNX Runtime for them."""

    process: subprocess.Popen
    port: int
    samples: np.ndarray
    wanted: np.ndarray

    def ask(self, body=b"", headers=JSON, method="POST", path="/invocations"):
        """Send one request on a new connection; return status, body and headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()

    def raw(self, data: bytes, end: bool = False) -> bytes:
        """Send raw bytes; return everything received until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
            found = b""
            connection.settimeout(1)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while part := connection.recv(65536):
                    found += part
            return found

    def check(self, number: int = 0) -> None:
        """Check that a valid request gets the right answer."""
        sample = self.samples[number % len(self.samples)]
        status, text, _ = self.ask(json.dumps({"inputs": sample.tolist()}))
        assert status == 200, text
        got = np.array(json.loads(text)["predictions"], np.float32)
        np.testing.assert_allclose(got, self.wanted[number % len(self.samples)], atol=1e-3)


def inputs_body(value: object, key: str = "inputs") -> bytes:
    """Return the body of a request with input ``value``."""
    return json.dumps({key: value}).encode()


def _scope(path: str = "/invocations", kind: str = "application/json") -> dict:
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
        "headers": [(b"content-type", kind.encode())], "client": None, "server": None,
        "asgi": {"version": "3.0"}, "state": {},
    }  # fmt: skip


def ask_app(app, *bodies: bytes, path="/invocations", kind="application/json", pause=0.0):
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

    asyncio.run(app(_scope(path, kind), receive, send))
    text = b"".join(message.get("body", b"") for message in sent).decode()
    assert sent[0]["type"] == "http.response.start"
    return sent[0]["status"], json.loads(text)


async def post(app, body: bytes, then: str = "") -> list[dict]:
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

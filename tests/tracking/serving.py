"""A model server process for tests: requests, and the outputs of ONNX Runtime."""

from __future__ import annotations

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

"""100,000 requests from 8 clients: no wrong answer, and constant server memory."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
import socket
import time

import numpy as np
import psutil
import pytest

from tests.tracking.bad_bodies import BAD_BODIES
from tests.tracking.serving import SHAPE, Server, inputs_body

CLIENTS, REQUESTS, WARM_UP = 8, 100_000, 10_000
SHARE_OF_BAD, SHARE_OF_NON_FINITE = 0.05, 0.05
GROWTH = 0.05
_LIMIT = 77_824  # size limit of a request, as the server derives it from the model
_HEAD = "POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@dataclasses.dataclass(frozen=True)
class Request:
    """Bytes to send, and the expected answer.

    Attributes:
        data: Head and body.
        wanted: The outputs of ONNX Runtime; None when the request must be rejected.
    """

    data: bytes
    wanted: np.ndarray | None

    def is_right(self, status: int, body: bytes) -> bool:
        """Return whether an answer is the expected one."""
        if self.wanted is not None:
            got = json.loads(body).get("predictions")
            return status == 200 and bool(np.allclose(got, self.wanted, atol=1e-3))
        return status == 400 and body.count(b"\n") == 1 and b"Traceback" not in body


def _request(body: bytes, wanted: np.ndarray | None = None) -> Request:
    return Request(f"{_HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body, wanted)


def _requests(server: Server) -> tuple[list[Request], list[Request], list[Request]]:
    good = [
        _request(inputs_body(value), wanted)
        for sample, wanted in zip(server.samples, server.wanted, strict=True)
        for value in (sample.tolist(), {"x": sample.tolist()})
    ]
    bad = [_request(body) for body in BAD_BODIES.values() if len(body) <= _LIMIT]
    non_finite = []
    for value in (np.nan, np.inf, -np.inf, 1e38):
        x = np.full(SHAPE, 0.5)
        x.flat[::7] = value
        non_finite.append(_request(inputs_body(x.tolist())))
    return good, bad, non_finite


def _client(server: Server, number: int, count: int) -> list[str]:
    """Send requests over one connection; return the wrong answers."""
    drawn = random.Random(number)
    good, bad, non_finite = _requests(server)
    known: set[tuple[int, int, bytes]] = set()  # right answers, parsed once
    wrong = []
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            kind = drawn.random()
            chosen = good
            if kind < SHARE_OF_BAD:
                chosen = bad
            elif kind < SHARE_OF_BAD + SHARE_OF_NON_FINITE:
                chosen = non_finite
            request = drawn.choice(chosen)
            connection.sendall(request.data)
            status, body = _answer(answers)
            key = (id(request), status, body)
            if key not in known:
                if request.is_right(status, body):
                    known.add(key)
                else:
                    wrong.append(f"{request.data[:200]!r} -> {status} {body[:200]!r}")
    return wrong


def _answer(answers) -> tuple[int, bytes]:
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline().lower()) not in (b"\r\n", b""):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return status, answers.read(length)


def _all_clients(server: Server, count: int) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        found = pool.map(lambda n: _client(server, n, count // CLIENTS), range(CLIENTS))
        return [line for wrong in found for line in wrong]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundred_thousand_requests(start_server, capsys):
    server = start_server()
    process = psutil.Process(server.process.pid)
    assert _all_clients(server, WARM_UP) == []
    before, began = process.memory_info().rss, time.monotonic()
    wrong = _all_clients(server, REQUESTS)
    seconds, after = time.monotonic() - began, process.memory_info().rss
    with capsys.disabled():
        print(
            f"\n{REQUESTS} requests of {CLIENTS} clients in {seconds:.0f} s, {len(wrong)} wrong; "
            f"RSS {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after "
            f"({after / before - 1:+.2%})"
        )
    assert wrong == []
    assert after < before * (1 + GROWTH)

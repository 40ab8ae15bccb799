"""``-e serve``: a bad request gets one line of JSON, and the next request a right answer."""

from __future__ import annotations

import concurrent.futures
import gzip
import http.client
import json
import signal
import socket
import time
from pathlib import Path

import mlflow
import numpy as np
import pytest

from tests.mlflow_runs import client_of, runs_of
from tests.tracking.bad_bodies import BAD_BODIES, MARKER, small_x
from tests.tracking.serving import JSON, inputs_body
from tvmopt.runtime import load

_CLOSE = "Connection: close"
_LARGE = b" " * 600_000
CLIENTS, REQUESTS = 8, 50


@pytest.fixture(scope="module")
def server(start_server):
    """Start the server of this file; its size limit lets deep and long bodies reach the parser."""
    return start_server(max_request_mb=0.5)


_GOOD = inputs_body(small_x())
_GZIP = {**JSON, "Content-Encoding": "gzip"}
BAD_HEADERS = {
    "no content type": ({}, _GOOD, 415),
    "unknown content type": ({"Content-Type": "text/hunter2"}, _GOOD, 415),
    "form": ({"Content-Type": "application/x-www-form-urlencoded"}, b"inputs=hunter2", 415),
    "csv": ({"Content-Type": "text/csv"}, b'x,hunter2\n1,"', 415),
    "parquet": ({"Content-Type": "application/vnd.apache.parquet"}, b"PAR1hunter2PAR1", 415),
    "latin-1": ({"Content-Type": "application/json; charset=latin-1"}, _GOOD, 415),
    "odd parameter": ({"Content-Type": "application/json; hunter2=1"}, _GOOD, 415),
    "gzip": (_GZIP, gzip.compress(_GOOD), 415),
    "gzip cut off": (_GZIP, gzip.compress(_GOOD)[:40], 415),
    "brotli": ({**JSON, "Content-Encoding": "br"}, b"hunter2", 415),
    "too large": (JSON, _LARGE, 413),
}


def _check_refusal(status: int, text: str, headers: dict[str, str], wanted: int = 400) -> None:
    assert status == wanted, text
    assert headers["content-type"] == "application/json"
    assert text.endswith("\n") and len(text.splitlines()) == 1
    answer = json.loads(text)
    assert answer.keys() == {"error_code", "message"}
    for word in ("Traceback", ".py", "site-packages", MARKER, "7777", str(Path.home())):
        assert word not in text
    assert len(text) < 500


@pytest.mark.parametrize("kind", BAD_BODIES)
def test_bad_body(server, kind):
    _check_refusal(*server.ask(BAD_BODIES[kind]))
    server.check()


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_bad_headers(server, kind):
    headers, body, wanted = BAD_HEADERS[kind]
    status, text, found = server.ask(body, headers)
    _check_refusal(status, text, found, wanted)
    server.check()


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("GET", "/invocations", 405),
        ("PUT", "/invocations", 405),
        ("OPTIONS", "/invocations", 405),
        ("POST", "/ping", 405),
        ("GET", "/", 404),
        ("POST", "/hunter2", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/hunter2", 404),
        ("POST", "/invocations/../hunter2", 404),
    ],
)
def test_bad_method_or_path(server, method, path, wanted):
    status, text, headers = server.ask(_GOOD, JSON, method, path)
    _check_refusal(status, text, headers, wanted)
    assert ("allow" in headers) == (wanted == 405)
    server.check()


def test_messages_say_the_rule_and_what_was_found(server):
    def said(body, headers=JSON):
        return json.loads(server.ask(body, headers)[1])["message"]

    shape = "input 'x' must be float32 of shape 1x3x8x8, but "
    assert said(BAD_BODIES["wrong shape"]) == shape + "dimension 3 has 9 values instead of 8"
    assert said(BAD_BODIES["value null"]) == shape + "holds null where it must not"
    assert said(BAD_BODIES["NaN"]) == (
        "input 'x' must be finite (option require_finite), but 1 of 192 values are NaN or infinite"
    )
    assert said(BAD_BODIES["output overflow"]).startswith("output 'y' must be finite")
    assert "malformed at character 0" in said(BAD_BODIES["no JSON"])
    assert "'x' (float32 1x3x8x8)" in said(BAD_BODIES["table split"])
    assert "at most 500000 bytes" in said(_LARGE)
    assert "application/json" in said(b"", {})


def _head(*lines: str) -> bytes:
    head = ["POST /invocations HTTP/1.1", "Content-Type: application/json", "Host: a", *lines]
    return "\r\n".join([*head, "", ""]).encode()


def _split(answer: bytes) -> tuple[int, str, dict[str, str]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), body.decode(), headers


def test_large_body_is_refused_by_its_announcement(server):
    answer = server.raw(_head("Content-Length: 99999999999"))
    _check_refusal(*_split(answer), 413)
    server.check()


def test_large_body_in_chunks(server):
    chunk = b"%x\r\n%s\r\n" % (10_000, b" " * 10_000)
    answer = server.raw(_head("Transfer-Encoding: chunked") + chunk * 60 + b"0\r\n\r\n")
    _check_refusal(*_split(answer), 413)
    server.check()


def test_good_body_in_chunks(server):
    body = inputs_body(server.samples[0].tolist())
    parts = [body[i : i + 100] for i in range(0, len(body), 100)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    status, text, _ = _split(server.raw(_head("Transfer-Encoding: chunked", _CLOSE) + chunks))
    assert status == 200
    np.testing.assert_allclose(json.loads(text)["predictions"], server.wanted[0], atol=1e-3)


@pytest.mark.parametrize("length", [10, 1_000_000_000])
def test_content_length_that_lies(server, length):
    body = _GOOD
    answer = server.raw(_head(f"Content-Length: {length}") + body)
    assert answer.startswith(b"HTTP/1.1 4")
    _check_lines_of_http(answer)
    server.check()


def test_body_that_ends_early(server):
    answer = server.raw(_head("Content-Length: 5000") + b'{"inputs": "hunter2', end=True)
    _check_lines_of_http(answer)  # maybe nothing, because the client is gone
    server.check()


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: many",),
        ("Content-Length: -1",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Transfer-Encoding: hunter2",),
        ("no colon hunter2",),
        ("X: " + "hunter2" * 20_000,),
    ],
)
def test_malformed_http(server, lines):
    answer = server.raw(_head(*lines) + b"zz\r\nhunter2")
    assert not answer or answer.split()[1][:1] in (b"4", b"5")  # reset for endless headers
    _check_lines_of_http(answer)
    server.check()


def _check_lines_of_http(answer: bytes) -> None:
    for word in (b"Traceback", b".py", MARKER.encode(), b"HTTP/1.1 200"):
        assert word not in answer


def test_pipelined_requests_are_answered_in_order(server):
    good = inputs_body(server.samples[3].tolist())
    bad = BAD_BODIES["value null"]
    requests = [_head(f"Content-Length: {len(b)}") + b for b in (good, bad)]
    answer = server.raw(b"".join(requests) + _head(f"Content-Length: {len(good)}", _CLOSE) + good)
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 400, 200]


def test_half_open_connections_do_not_block_others(server):
    opened = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    try:
        for number, connection in enumerate(opened):
            starts = (b"", b"POST /invoc", _head("Content-Length: 900"), b"\x16\x03\x01")
            connection.sendall(starts[number % len(starts)])
        for number in range(5):
            server.check(number)
    finally:
        for connection in opened:
            connection.close()
    server.check()


def test_protocol_is_mlflows(server):
    for path in ("/ping", "/health"):
        assert server.ask(method="GET", path=path, headers={})[:2] == (200, "\n")
    assert server.ask(method="GET", path="/version")[1] == mlflow.__version__
    x, want = server.samples[1], server.wanted[1]
    for body in (
        inputs_body(x.tolist()),
        inputs_body({"x": x.tolist()}),
        inputs_body(x.tolist(), "instances"),
        inputs_body([{"x": x[0].tolist()}], "instances"),
        json.dumps({"inputs": x.tolist()}, indent=1).encode(),
    ):
        for kind in ("application/json", 'Application/JSON; charset="UTF-8"'):
            status, text, headers = server.ask(body, {"Content-Type": kind})
            assert (status, headers["content-type"]) == (200, "application/json")
            np.testing.assert_allclose(json.loads(text)["predictions"], want, atol=1e-3)


def test_an_answer_does_not_wait_until_its_head_is_acknowledged(server):
    """Without TCP_NODELAY every request on an open connection takes 40 ms and more."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        connection.request("POST", "/invocations", inputs_body(server.samples[0].tolist()), JSON)
        assert connection.getresponse().read()
        seconds.append(time.perf_counter() - start)
    connection.close()
    assert sorted(seconds)[3] < 0.035


def test_whole_numbers_are_numbers(server, conv_bundle):
    x = np.arange(192).reshape(1, 3, 8, 8)
    status, text, _ = server.ask(inputs_body(x.tolist()))
    assert status == 200
    want = load(conv_bundle)(x.astype(np.float32))[0]
    np.testing.assert_allclose(json.loads(text)["predictions"], want, atol=1e-3)


def test_many_clients(server):
    bodies = [inputs_body(sample.tolist()) for sample in server.samples]

    def client(number: int) -> int:
        right = 0
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for i in range(REQUESTS):
            sample = (number * 5 + i) % len(bodies)
            bad = i % 5 == 4
            body = BAD_BODIES["value null"] if bad else bodies[sample]
            connection.request("POST", "/invocations", body, JSON)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == (400 if bad else 200), text
            if not bad:
                got = np.array(json.loads(text)["predictions"])
                right += bool(np.allclose(got, server.wanted[sample], atol=1e-3))
        connection.close()
        return right

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(client, range(CLIENTS))) == [REQUESTS - REQUESTS // 5] * CLIENTS


def _states(folder: Path) -> list[str]:
    found = runs_of(client_of(folder), "tags.`tvmopt.entry_point` = 'serve'")
    return [run.info.status for run in found]


def test_sigterm_ends_the_server_and_its_mlflow_run(serving_store, start_server):
    server = start_server(through_mlflow=True)
    server.check()
    assert _states(serving_store) == ["RUNNING"]
    server.process.terminate()  # mlflow run, not the server
    server.process.wait(timeout=60)
    end = time.monotonic() + 30
    while _states(serving_store) == ["RUNNING"] and time.monotonic() < end:
        time.sleep(0.2)
    assert _states(serving_store) == ["FINISHED"]
    with pytest.raises(ConnectionRefusedError):
        server.check()


def test_serving_writes_nothing_to_the_store_and_ends_with_code_0(serving_store, server):
    """This is the last test with the server of this file."""
    database = (serving_store / "mlflow.db").read_bytes()
    server.check()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    log = (serving_store / "serve-0.log").read_text()
    assert log.rstrip().endswith("ended")
    assert "Traceback" not in log and MARKER not in log
    assert (serving_store / "mlflow.db").read_bytes() == database
    assert not list((serving_store / "tmp-0").iterdir())

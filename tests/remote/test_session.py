"""RPC sessions: every wait has a timeout, and every error names its cause in one line."""

from __future__ import annotations

import re
import socket
import threading
import time

import psutil
import pytest

from tests.ports import HOST
from tvmopt.errors import ArtifactError, ConfigError, LimitError
from tvmopt.remote import Board, session
from tvmopt.remote.session import limited, open_session

from .conftest import wait_for


def _session_process() -> psutil.Process:
    """Return the process of the open session: a child of the server that runs no worker module."""
    children = psutil.Process().children()
    servers = [child for child in children if "tvm.exec.popen_worker" in child.cmdline()]
    sessions = [child for server in servers for child in server.children()]
    [found] = [p for p in sessions if p.status() != psutil.STATUS_ZOMBIE]
    return found


@pytest.fixture
def listener():
    """Open a listening socket that answers a connection with nothing, or with bytes."""
    with socket.create_server((HOST, 0)) as server:

        def answer(said: bytes) -> Board:
            def accept() -> None:
                connection, _ = server.accept()
                connection.sendall(said)
                kept.append(connection)

            threading.Thread(target=accept, daemon=True).start()
            return Board(HOST, server.getsockname()[1], "own")

        kept: list[socket.socket] = []
        yield answer
        for connection in kept:
            connection.close()


def test_session_computes_there_and_frees_the_board(board):
    for _ in range(2):
        with open_session(board, 30, 10) as there:
            assert there.get_function("runtime.config_threadpool")(1, 1) is None


def test_no_tracker():
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    refused = rf"{HOST}:{port} is not one \(Connection refused\); start one: .*rpc_tracker"
    with pytest.raises(ConfigError, match=refused), open_session(Board(HOST, port, "own")):
        pass


def test_no_such_host():
    board = Board("no-such-host.invalid", 9190, "own")
    with pytest.raises(ConfigError, match=r"address of a TVM RPC tracker.* is not one"):
        session.check_tracker(board)


def test_something_else_listens(listener):
    with pytest.raises(ConfigError, match="is something else"):
        session.check_tracker(listener(b"HTTP/1.1 400 Bad Request"))


def test_tracker_that_is_silent(listener, monkeypatch):
    monkeypatch.setattr(session, "_ANSWER_S", 0.3)
    with pytest.raises(ConfigError, match=r"does not answer within 0\.3 s"):
        session.check_tracker(listener(b""))


def test_no_such_key(board):
    asked = Board(board.host, board.port, "pi5")
    known = r"rpc_key must be one that the tracker at .* knows \((.*)\), but got 'pi5'; start its"
    with pytest.raises(ConfigError, match=known) as caught, open_session(asked):
        pass
    assert "own" in re.search(known, str(caught.value))[1]


def test_a_busy_board(board):
    with (
        open_session(board, 30, 10),
        pytest.raises(LimitError, match=r"no board own .* was free within 1 s"),
        open_session(board, 30, 1),
    ):
        pass


def test_session_that_takes_too_long(board):
    with (
        pytest.raises(LimitError, match=r"session on board own .* may take 1 s"),
        open_session(board, 1, 10) as there,
    ):
        time.sleep(1.5)
        there.get_function("runtime.config_threadpool")


def test_board_that_stops_answering(serve, monkeypatch):
    board = serve("stopped")
    monkeypatch.setattr(session, "_GRACE_S", -29.0)
    monkeypatch.setattr(session, "_ANSWER_S", 0.5)
    with (
        pytest.raises(LimitError, match=r"board stopped .* must answer within 30 s, but it has"),
        open_session(board, 30, 10) as there,
    ):
        stopped = _session_process()
        stopped.suspend()
        try:
            there.get_function("runtime.config_threadpool")
        finally:
            stopped.resume()


def test_a_crash_on_the_board(serve):
    with (
        pytest.raises(ArtifactError, match=r"board crashing .* must keep its session, but it"),
        open_session(serve("crashing"), 30, 10) as there,
    ):
        _session_process().kill()
        there.get_function("runtime.config_threadpool")


def test_limits_leave_other_alarms_alone():
    with limited(5, "outer"):
        with pytest.raises(LimitError, match="inner"), limited(0.1, "inner"):
            time.sleep(2)
        with (
            pytest.raises(LimitError, match="outer"),
            limited(60, "unused"),
            limited(0.2, "outer"),
        ):
            time.sleep(2)


def test_the_board_is_registered_again_at_the_end(own_board):
    assert wait_for(own_board.port, own_board.key) == own_board

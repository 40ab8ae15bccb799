"""A session on a board through TVM's RPC tracker, where nothing waits for ever.

TVM's client waits without a limit: for a tracker that does not answer, for a board that others
use, and for an answer of a board that was switched off. So every wait here has an end, the session
as a whole has one on both sides, and each failure is one line that says whose it is.

The tracker and the board execute what they are sent, unencrypted and without asking who sends it.
Reach them over a network that is yours alone; servers that should serve this machine only must be
bound to 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from tvmopt.errors import ArtifactError, ConfigError, LimitError, TvmoptError, last_line
from tvmopt.remote.board import Board

SESSION_S = 900.0
WAIT_S = 60.0
_ANSWER_S = 5.0
# The board itself ends a session first; this side waits a little longer for it to say so.
_GRACE_S = 5.0
_AGAIN_S = 5.0


@contextlib.contextmanager
def open_session(
    board: Board, session_s: float = SESSION_S, wait_s: float = WAIT_S
) -> Iterator[Any]:
    """A ``tvm.rpc.RPCSession`` on a free board, given back at the end.

    Args:
        board: Which.
        session_s: Most seconds of the session.
        wait_s: Most seconds to wait for a board that is free.

    Raises:
        ConfigError: When there is no tracker, or no board of the key.
        LimitError: When no board gets free, or the session takes too long.
        ArtifactError: When the board ends the session, as it does when a library crashes there.
    """
    with translated(board, session_s):
        session = request(board, session_s, wait_s)
        late = f"board {board} must answer within {session_s:g} s, but it has not"
        try:
            with limited(session_s + _GRACE_S, late):
                yield session
        finally:
            _close(session)


def check_tracker(board: Board) -> None:
    """Raise :class:`ConfigError` unless a tracker answers and knows boards of the key."""
    from tvm.rpc import base

    where = f"rpc_tracker must be the address of a TVM RPC tracker, but {board.address}"
    try:
        with socket.create_connection((board.host, board.port), _ANSWER_S) as connection:
            connection.settimeout(_ANSWER_S)
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            [magic] = struct.unpack("<i", base.recvall(connection, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise ConfigError(f"{where} is something else")
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(connection)
    except TimeoutError as error:
        raise ConfigError(f"{where} does not answer within {_ANSWER_S:g} s") from error
    except (OSError, ValueError, struct.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"{where} is not one ({reason}); start one: "
            f"python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {board.port}"
        ) from error
    # "server:pi5" for each server that is connected
    keys = sorted({item["key"].partition(":")[2] for item in summary["server_info"]})
    if board.key not in keys:
        raise ConfigError(
            f"rpc_key must be one that the tracker at {board.address} knows "
            f"({', '.join(keys) or 'it knows none'}), but got {board.key!r}; start its server: "
            f"python -m tvm.exec.rpc_server --tracker {board.address} --key {board.key}"
        )


def request(board: Board, session_s: float, wait_s: float) -> Any:
    """A session on a board, to be closed by who asks; see :func:`open_session`."""
    from tvm import rpc

    check_tracker(board)
    with limited(wait_s, f"no board {board} was free within {wait_s:g} s; try later"):
        tracker = rpc.connect_tracker(board.host, board.port)
        try:
            return tracker.request(board.key, session_timeout=session_s, max_retry=2)
        finally:
            tracker.close()


def _close(session: Any) -> None:
    """Give the board back now, not when Python's garbage is collected."""
    with contextlib.suppress(Exception), limited(_ANSWER_S, "the board does not answer"):
        session.get_function("CloseRPCConnection")()


@contextlib.contextmanager
def translated(board: Board, session_s: float) -> Iterator[None]:
    """Errors of TVM's RPC as one line of ours."""
    from tvm.error import RPCError

    try:
        yield
    except TvmoptError:
        raise
    except (RuntimeError, OSError) as error:
        if not type(error).__module__.startswith(("tvm", "builtins")):
            raise  # what fails on this machine meanwhile is not the board's
        if "session has expired" in str(error):
            raise LimitError(
                f"a session on board {board} may take {session_s:g} s, and had not ended by then; "
                "give it less to do, or a smaller model"
            ) from error
        if isinstance(error, RPCError):
            raise ArtifactError(
                f"what is asked of board {board} must succeed there, but it failed: "
                f"{last_line(error)}"
            ) from error
        raise ArtifactError(
            f"board {board} must keep its session, but it ended it ({last_line(error)}): what ran "
            "there crashed, for example of an instruction that its CPU lacks; see the log of its "
            "RPC server, start that again if it died, and check target"
        ) from error


@contextlib.contextmanager
def limited(seconds: float, message: str) -> Iterator[None]:
    """Raise :class:`LimitError` with ``message`` when the body takes longer.

    Interrupts TVM's waits, too, which look for signals. In another thread than the main one, which
    gets no signals, there is no limit but that of the session on the board's side.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise LimitError(message)

    start = time.monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: what is raised while an object is destroyed gets lost.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # someone else's alarm goes on
            rest = max(0.01, left - (time.monotonic() - start))
            signal.setitimer(signal.ITIMER_REAL, rest, interval)

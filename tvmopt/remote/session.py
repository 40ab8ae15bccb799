"""Open a session on a board through TVM's RPC tracker, with a timeout on every wait.

TVM's client has no timeouts: it waits for a tracker that does not answer, for a board that others
use, and for a board that was switched off. Here every wait has a timeout, both sides limit the
session, and each failure is one line that names its cause.

Tracker and board execute any code that they receive, without encryption or authentication. Use a
private network; servers for this machine alone must be bound to 127.0.0.1.
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
# The board ends a session first; this side waits a little longer for its message.
_GRACE_S = 5.0
_AGAIN_S = 5.0


@contextlib.contextmanager
def open_session(
    board: Board, session_s: float = SESSION_S, wait_s: float = WAIT_S
) -> Iterator[Any]:
    """Yield a ``tvm.rpc.RPCSession`` on a free board; release the board at the end.

    Args:
        board: The board.
        session_s: Timeout of the session in seconds.
        wait_s: Timeout in seconds for a free board.

    Raises:
        ConfigError: When there is no tracker, or no board with the key.
        LimitError: When no board is free in time, or the session takes too long.
        ArtifactError: When the board ends the session, e.g. because a library crashes there.
    """
    with _translated(board, session_s):
        session = _request(board, session_s, wait_s)
        late = f"board {board} must answer within {session_s:g} s, but it has not"
        try:
            with limited(session_s + _GRACE_S, late):
                yield session
        finally:
            _close(session)


def check_tracker(board: Board) -> None:
    """Raise :class:`ConfigError` unless a tracker answers and has boards with the key."""
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
        raise ConfigError(
            f"{where} does not answer within {_ANSWER_S:g} s"
            "; start the tracker, or correct the address"
        ) from error
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


def _request(board: Board, session_s: float, wait_s: float) -> Any:
    """Return a session on a board; the caller closes it."""
    from tvm import rpc

    check_tracker(board)
    with limited(wait_s, f"no board {board} was free within {wait_s:g} s; try later"):
        tracker = rpc.connect_tracker(board.host, board.port)
        try:
            return tracker.request(board.key, session_timeout=session_s, max_retry=2)
        finally:
            tracker.close()


def _close(session: Any) -> None:
    """Release the board now, not at garbage collection."""
    # The board may be gone, or answer anything: the session ends either way.
    with contextlib.suppress(Exception), limited(_ANSWER_S, "the board does not answer"):
        session.get_function("CloseRPCConnection")()


@contextlib.contextmanager
def _translated(board: Board, session_s: float) -> Iterator[None]:
    """Translate errors of TVM's RPC to our own, of one line."""
    from tvm.error import RPCError

    try:
        yield
    except TvmoptError:
        raise
    except (RuntimeError, OSError) as error:
        if not type(error).__module__.startswith(("tvm", "builtins")):
            raise  # a failure of this machine, not of the board
        if "session has expired" in str(error):
            raise LimitError(
                f"a session on board {board} may take {session_s:g} s, and had not ended by then; "
                "give it less to do, or a smaller model"
            ) from error
        if isinstance(error, RPCError):
            raise ArtifactError(
                f"what is asked of board {board} must succeed there, but it failed: "
                f"{last_line(error)}"
                "; see the log of its RPC server"
            ) from error
        raise ArtifactError(
            f"board {board} must keep its session, but it ended it ({last_line(error)}): what ran "
            "there crashed, for example of an instruction that its CPU lacks; see the log of its "
            "RPC server, start that again if it died, and check target"
        ) from error


@contextlib.contextmanager
def limited(seconds: float, message: str) -> Iterator[None]:
    """Raise :class:`LimitError` with ``message`` when the body takes longer than ``seconds``.

    The alarm signal also interrupts TVM's waits. Outside the main thread, which alone gets signals,
    only the board's limit on the session applies.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise LimitError(message)

    start = time.monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    # Repeated, because an exception in a destructor is lost.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # restore an earlier alarm
            rest = max(0.01, left - (time.monotonic() - start))
            signal.setitimer(signal.ITIMER_REAL, rest, interval)

"""End a command cleanly when it is asked to end, or when what started it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.5
_AGAIN_S = 1.0
# The exception waits so many seconds for the end of a database call; most take milliseconds.
_DATABASE_S = 5.0
_POLL_S = 0.001
# An exception that is raised inside of these leaves a transaction open: SQLite stays locked.
_DATABASE_MODULES = ("sqlalchemy", "alembic", "mlflow.store", "optuna.storages")

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class _Ended(SystemExit):
    """Raised for SIGTERM and SIGHUP; weak references to ``SystemExit`` itself are not possible."""


class _Interrupted(KeyboardInterrupt):
    """Raised for SIGINT."""


_raised: list[weakref.ref[_Ended | _Interrupted]] = []
#: The signal that ends this command, in a list of at most one.
_received: list[int] = []


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise ``SystemExit`` with the exit code that shells expect.

    So runs are closed as KILLED, folders removed and children ended, as for Ctrl-C. A second signal
    does not cut that short. A call of the tracking store or of the study's database is completed
    first. Where the exception is swallowed, as in ``__del__`` and in callbacks from C, it is raised
    again a second later.
    """
    for number in _SIGNALS:
        # nohup, and whoever starts a daemon, ignore SIGHUP: so it stays.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def end_with_mlflow_run() -> None:
    """Where ``mlflow run`` started this command, end when it is gone.

    Its shell may stand between, which outlives it: so the first ancestor that is ``mlflow`` is
    watched from a thread. Elsewhere nothing is done.
    """
    if "MLFLOW_RUN_ID" not in os.environ or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
    starter = _mlflow_run()
    if starter is not None:
        threading.Thread(target=_watch, args=starter, daemon=True).start()


def raise_again() -> None:
    """Raise what a received signal raises; to be called where an error would end the command.

    C code may turn the exception of a signal into another error: a module of an extension
    that a signal meets while it is imported raises ``ImportError: initialization failed``.
    """
    if _received:
        _raise(_received[0])


def settle() -> None:
    """To be called when a command ends: nothing is raised any more."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _end(number: int, frame: FrameType | None) -> None:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    _received[:] = [number]
    latest = time.monotonic() + _DATABASE_S

    def look_again(_number: int, frame: FrameType | None) -> None:
        nonlocal latest
        if _in_database(frame) and time.monotonic() < latest:
            signal.setitimer(signal.ITIMER_REAL, _POLL_S)
            return
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        latest = time.monotonic() + _AGAIN_S + _DATABASE_S
        if not _is_handled():
            _raise(number)

    signal.signal(signal.SIGALRM, look_again)
    look_again(number, frame)


def _is_handled() -> bool:
    """Whether the exception was raised and somebody still holds it."""
    if not _raised:
        return False
    gc.collect()
    return _raised[-1]() is not None


def _in_database(frame: FrameType | None) -> bool:
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if any(name == module or name.startswith(module + ".") for module in _DATABASE_MODULES):
            return True
        frame = frame.f_back
    return False


def _raise(number: int) -> NoReturn:
    error = _Interrupted() if number == signal.SIGINT else _Ended(128 + number)
    _raised.append(weakref.ref(error))
    try:
        raise error
    finally:
        del error  # the frame would keep it alive, and it the frame


def _watch(pid: int, start: str) -> None:
    pause = threading.Event()
    while not pause.wait(_LOOK_S):
        if _status(pid)[1] != start:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _mlflow_run() -> tuple[int, str] | None:
    """Process id and start of the nearest ancestor that is ``mlflow run``."""
    pid = os.getppid()
    while pid > 1:
        parent, start = _status(pid)
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            names = [word.rpartition(b"/")[2] for word in words]
            if b"mlflow" in names and b"run" in names:
                return pid, start
        pid = parent
    return None


def _status(pid: int) -> tuple[int, str]:
    """Parent and start in clock ticks of a process; ``(0, "")`` when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return (0, "") if fields[0] == "Z" else (int(fields[1]), fields[19])

"""Retry calls while the study database is unavailable: restarting, or locked by others."""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from tvmopt.errors import StudyAwayError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_AWAY_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0


def patient(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Call ``function`` with exponential backoff while the database is unavailable.

    The function must be safe to call twice.

    Raises:
        StudyAwayError: The database was unavailable for a minute, or the error is permanent,
            such as a full disk.
    """

    @functools.wraps(function)
    def waiting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        end, pause = time.monotonic() + _AWAY_S, _FIRST_PAUSE_S
        while True:
            try:
                return function(*args, **kwargs)
            except StorageInternalError as error:
                cause = error.__cause__
                if not isinstance(cause, OperationalError | InterfaceError):
                    raise
                if not _passes(cause) or time.monotonic() + pause > end:
                    raise StudyAwayError(_words(cause)) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    return waiting


def _passes(error: DBAPIError) -> bool:
    """Return whether a retry may help; SQLite's class also covers full and damaged files."""
    if not isinstance(error.orig, sqlite3.Error):
        return True
    return any(word in str(error.orig) for word in ("locked", "busy", "unable to open"))


def _words(error: DBAPIError) -> str:
    waited = f" for {_AWAY_S:.0f} s" if _passes(error) else ""
    reason = " ".join(str(error.orig).split())[:300]
    return (
        f"the database of the study must answer, but it refused{waited}: {reason}; cure that and "
        "start the same command again: it goes on"
    )

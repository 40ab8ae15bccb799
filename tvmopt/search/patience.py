"""Wait for a database of studies that is away for a while: restarted, or locked by others."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import InterfaceError, OperationalError

from tvmopt.errors import StudyAwayError

_P, _R = ParamSpec("_P"), TypeVar("_R")
_AWAY_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0


def patient(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Call ``function`` again, after longer and longer pauses, as long as the database is away.

    The function must be safe to call twice.

    Raises:
        StudyAwayError: The database was away for a minute.
    """

    @functools.wraps(function)
    def waiting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        end, pause = time.monotonic() + _AWAY_S, _FIRST_PAUSE_S
        while True:
            try:
                return function(*args, **kwargs)
            except StorageInternalError as error:
                if not isinstance(error.__cause__, OperationalError | InterfaceError):
                    raise
                if time.monotonic() + pause > end:
                    raise StudyAwayError(
                        "the database of the study must answer, but it was away for "
                        f"{_AWAY_S:.0f} s; start the same command again when it is back: it goes on"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    return waiting

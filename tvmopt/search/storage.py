"""The database of studies: any URL that Optuna's RDB storage takes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy.exc import SQLAlchemyError

from tvmopt.errors import ConfigError

_SQLITE = "sqlite:///"
_PAUSE_S = 0.5
_REFUSALS = (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, ValueError)


def open_storage(url: str, attempts: int = 5) -> optuna.storages.RDBStorage:
    """Open, and create when needed, a database of studies.

    Args:
        url: Its URL.
        attempts: How often to try: two processes that create the tables at once get in each
            other's way.

    Raises:
        ConfigError: When the URL is none, or the database cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith(_SQLITE):
        options = {"connect_args": {"timeout": 60}}  # seconds to wait for other writers
        with suppress(OSError):  # the database says what is wrong with its folder
            Path(url.removeprefix(_SQLITE)).resolve().parent.mkdir(parents=True, exist_ok=True)
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except _REFUSALS as error:
        if attempts <= 1 or not _is_race(error):
            raise ConfigError(f"{_rule(url)}: {_first_line(error)}") from error
    time.sleep(_PAUSE_S)
    return open_storage(url, attempts - 1)


def _is_race(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("already exists", "duplicate", "unique", "locked"))


def _rule(url: str) -> str:
    shown = url if "@" not in url else f"{url.partition('://')[0]}://...@{url.rpartition('@')[2]}"
    return (
        "storage must be the URL of a database that can be reached (sqlite:///file.db, "
        f"postgresql://user:password@host/name), but {shown!r} cannot"
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

"""The database of studies: any URL that Optuna's RDB storage takes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import optuna
from sqlalchemy.exc import SQLAlchemyError

from tvmopt.errors import ConfigError

_SQLITE = "sqlite:///"
_ATTEMPTS = 5


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """Open, and create when needed, a database of studies.

    Raises:
        ConfigError: When the URL is none, or the database cannot be reached.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options = {}
    if url.startswith(_SQLITE):
        options = {"connect_args": {"timeout": 60}}  # seconds to wait for other writers
        with suppress(OSError):
            Path(url.removeprefix(_SQLITE)).resolve().parent.mkdir(parents=True, exist_ok=True)
    else:
        options = {"pool_pre_ping": True}  # type: ignore[dict-item]
    for attempt in range(_ATTEMPTS):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # Two processes that create the tables at once get in each other's way.
            if attempt + 1 < _ATTEMPTS and _is_race(error):
                time.sleep(0.2 * 2**attempt)
                continue
            raise ConfigError(f"{_rule(url)}: {_first_line(error)}") from error
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{_rule(url)}: {_first_line(error)}") from error
    raise AssertionError("unreachable")


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

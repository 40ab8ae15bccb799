"""Open the study database: any URL of Optuna's RDB storage."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy.exc import SQLAlchemyError

from tvmopt.errors import ConfigError
from tvmopt.search.urls import has_secret, masked_url, without_secrets

#: Environment variable with the URL, for one that holds a password.
VARIABLE = "TVMOPT_STORAGE"
_SQLITE = "sqlite:///"
_PAUSE_S = 0.5
_REFUSALS = (SQLAlchemyError, optuna.exceptions.StorageInternalError, ImportError, ValueError)


def storage_url(given: str, default: str) -> str:
    """Return the database URL: the parameter, else ``TVMOPT_STORAGE``, else ``default``.

    Raises:
        ConfigError: When the parameter holds a password: parameters are logged and printed.
    """
    if has_secret(given):
        raise ConfigError(
            f"storage must not hold a password, because parameters are logged, but got "
            f"{masked_url(given)!r}; set the environment variable {VARIABLE} to the whole URL, or "
            "leave the password out and set PGPASSWORD or write ~/.pgpass; a run that mlflow run "
            "opened for this command holds it already: delete the run and change the password"
        )
    return given or os.environ.get(VARIABLE, "") or default


def open_storage(url: str, attempts: int = 5) -> optuna.storages.RDBStorage:
    """Open a study database, and create it when it does not exist.

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
            reason = without_secrets(_first_line(error), url)
            raise ConfigError(f"{_rule(url)}: {reason}") from None
    time.sleep(_PAUSE_S)
    return open_storage(url, attempts - 1)


def _is_race(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("already exists", "duplicate", "unique", "locked"))


def _rule(url: str) -> str:
    return (
        "storage must be the URL of a database that can be reached (sqlite:///file.db, "
        f"postgresql://user@host/name), but {masked_url(url)!r} cannot"
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

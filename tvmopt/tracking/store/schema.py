"""Create the schema of a tracking store once, under a lock; used by MLflow's plugin, too.

MLflow checks and creates without a lock, or under one whose name in /tmp anybody can guess: it
empties the file that a link of that name points to. Two commands that begin a store at once then
migrate it both, and one fails.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from tvmopt.errors import EnvironmentSetupError
from tvmopt.scratch import SCHEMA_PREFIX, scratch_folder, sweep
from tvmopt.tracking.store.exclusive import alone

if TYPE_CHECKING:
    from sqlalchemy import Engine

SQLITE = "sqlite:///"
# Time limits of a database server's answer, and of one attempt.
_PATIENCE_S, _CONNECT_S = 15.0, 5
# Drivers that take the time of one attempt as connect_timeout, in seconds.
_WITH_TIMEOUT = ("postgresql+psycopg2", "postgresql+psycopg", "mysql+pymysql", "mysql+mysqldb")
_Store = TypeVar("_Store")


def build_store(uri: str, build: Callable[[], _Store]) -> _Store:
    """Create the schema of a database that has none, and build its store, under a lock.

    Args:
        uri: URI of the database.
        build: Opens the store; makes its default experiment where there is none.

    Raises:
        EnvironmentSetupError: When the database cannot be opened. MLflow would try for a minute or
            more, and log each attempt.
    """
    uri = absolute_uri(uri)
    _check_file(uri)
    with alone(f"the schema of {uri}"):
        _create_schema(uri)
        return build()


def absolute_uri(uri: str) -> str:
    """Make the path in a SQLite URI absolute; other URIs are returned as they are."""
    if not uri.startswith(SQLITE):
        return uri
    path = uri.removeprefix(SQLITE)
    if not path or path.startswith(("/", ":memory:")):
        return uri
    return f"{SQLITE}{Path(path).resolve()}"


def _create_schema(uri: str) -> None:
    file = sqlite_file(uri)
    if file is not None and file.parent.is_dir():
        sweep(file.parent, SCHEMA_PREFIX)
        if not file.exists():
            # A process that is killed in a migration leaves a database that no migration takes
            # any more: the file gets its name when it is complete.
            with scratch_folder(SCHEMA_PREFIX, file.parent) as folder:
                draft = folder / file.name
                _create_tables(f"{SQLITE}{quote(str(draft))}")
                with suppress(OSError):  # somebody was faster, or there are no hard links here
                    os.link(draft, file)
    _create_tables(uri)


def _check_file(uri: str) -> None:
    """Raise unless a SQLite store is a regular file, or may become one; makes its folder."""
    if not uri.startswith(SQLITE + "/"):
        return
    from sqlalchemy import make_url

    path = Path(make_url(uri).database or "")
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return
        problem = "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device"
    except FileNotFoundError:
        problem = "it is a link to a file that does not exist" if path.is_symlink() else ""
        if not problem:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return
            except OSError as error:
                problem = f"its folder cannot be made ({error.strerror})"
    except (OSError, ValueError) as error:  # a loop of links, a file for a folder, a NUL
        problem = str(getattr(error, "strerror", None) or error)
    raise EnvironmentSetupError(
        "the tracking store must be a regular file, or a new one in a folder that can be written "
        f"to, but got '{path}' ({problem}); set MLFLOW_TRACKING_URI to {SQLITE}/another/file.db"
    )


def sqlite_file(uri: str) -> Path | None:
    """File of a SQLite database; None for one in memory, with options, or of another kind."""
    if not uri.startswith(SQLITE + "/"):
        return None
    from sqlalchemy import make_url

    url = make_url(uri)
    return Path(url.database) if url.database and not url.query else None


def _create_tables(uri: str) -> None:
    # Imported here: MLflow loads this module as a plugin before it has these.
    from mlflow.store.db.utils import _all_tables_exist, _initialize_tables

    engine = _reachable_engine(uri)
    try:
        if not _all_tables_exist(engine):
            _initialize_tables(engine)
    finally:
        engine.dispose()


def _reachable_engine(uri: str) -> Engine:
    """Engine of a database that answers.

    A file is tried once, a server for ``_PATIENCE_S`` seconds: it may have been started with us.
    """
    from mlflow.store.db.utils import create_sqlalchemy_engine
    from sqlalchemy import inspect
    from sqlalchemy.exc import ArgumentError, DBAPIError

    from tvmopt.search.urls import masked_url, without_secrets

    begun, pause, reason = time.monotonic(), 1.0, ""
    patience = 0.0 if uri.startswith(SQLITE) else _PATIENCE_S
    while True:
        engine = None
        try:
            engine = create_sqlalchemy_engine(_with_timeout(uri))
            inspect(engine).get_table_names()  # reads the file
            return engine
        except (ImportError, ArgumentError, ValueError) as error:  # no driver; no URL
            reason, patience = str(error), 0.0
        except DBAPIError as error:
            reason = str(error.orig)
        if engine is not None:
            engine.dispose()
        if time.monotonic() + pause - begun > patience:
            break
        time.sleep(pause)
        pause *= 2
    where = masked_url(uri)
    cure = "close what holds the file, or repair it" if uri.startswith(SQLITE) else "start it"
    raise EnvironmentSetupError(
        f"the tracking store '{where}' must answer, but: "
        f"{without_secrets(' '.join(reason.split()), uri)[:300]}; {cure}, or check "
        "MLFLOW_TRACKING_URI"
    )


def _with_timeout(uri: str) -> str:
    """``uri`` with a limit of time for one attempt to connect, where it has none."""
    from sqlalchemy import make_url

    url = make_url(uri)
    name = f"{url.get_backend_name()}+{url.get_driver_name()}"
    if name not in _WITH_TIMEOUT or "connect_timeout" in url.query:
        return uri
    limited = url.update_query_dict({"connect_timeout": str(_CONNECT_S)})
    return limited.render_as_string(hide_password=False)

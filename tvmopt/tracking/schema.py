"""Create the schema of a tracking store once, whoever comes first; MLflow's plugin uses this, too.

MLflow checks and creates without a lock, or under one whose name in /tmp anybody can guess: it
empties the file that a link of that name points to. Two commands that begin a store at once then
migrate it both, and one fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from tvmopt.scratch import SCHEMA_PREFIX, scratch_folder, sweep
from tvmopt.tracking.exclusive import alone

SQLITE = "sqlite:///"
_Store = TypeVar("_Store")


def build_store(uri: str, build: Callable[[], _Store]) -> _Store:
    """Create the schema of a database that has none, and build its store, under a lock.

    Args:
        uri: URI of the database.
        build: Opens the store; makes its default experiment where there is none.
    """
    uri = absolute_uri(uri)
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
    file = _file(uri)
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


def _file(uri: str) -> Path | None:
    """File of a SQLite database; None for one in memory, with options, or of another kind."""
    if not uri.startswith(SQLITE + "/"):
        return None
    from sqlalchemy import make_url

    url = make_url(uri)
    return Path(url.database) if url.database and not url.query else None


def _create_tables(uri: str) -> None:
    # Imported here: MLflow loads this module as a plugin before it has these.
    from mlflow.store.db.utils import (
        _all_tables_exist,
        _initialize_tables,
        create_sqlalchemy_engine_with_retry,
    )

    engine = create_sqlalchemy_engine_with_retry(uri)
    try:
        if not _all_tables_exist(engine):
            _initialize_tables(engine)
    finally:
        engine.dispose()

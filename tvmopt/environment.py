"""Variables of this process's environment, which its children inherit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Context in which the variable ``name`` has a value; it has the earlier one, or none, after.

    Args:
        name: Name of the variable.
        value: Its value.
    """
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before

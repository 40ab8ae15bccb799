"""What the stages of one command have computed, for later stages of the same command.

A search converts a network ten times in other dtypes; most of its kernels and all outputs of its
float model stay the same. The folder is private and goes with the command: what is in it needs no
version, and nothing that an earlier command wrote is trusted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tvmopt.environment import variable

_VARIABLE = "TVMOPT_COMMAND_CACHE"


@contextlib.contextmanager
def shared_in(parent: Path) -> Iterator[None]:
    """Let this process and its children share a folder in ``parent``, which the caller removes."""
    with variable(_VARIABLE, str(parent / "command-cache")):
        yield


def folder(kind: str) -> Path | None:
    """Return the folder of one kind of results; None outside of a command.

    Args:
        kind: Name of the folder.
    """
    root = os.environ.get(_VARIABLE)
    if not root:
        return None
    path = Path(root) / kind
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield where to write a file; it is ``path`` when it is complete.

    Other processes and threads never read a part of it.

    Args:
        path: The file, in a folder of :func:`folder`.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    yield new
    new.replace(path)

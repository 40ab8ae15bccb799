"""Temporary folders that do not outlive their process for long, even when it is killed.

Each holds a lock file that its process holds locked. The operating system gives the lock back when
the process dies, however it dies; so a folder whose lock is free is nobody's, and the next command
removes it. Reports of errors stay for people to read, the newest few.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmopt.environment import variable

PREFIX = "tvmopt-"
PULL_PREFIX = ".tvmopt-pull-"
#: Beside a SQLite store: its file until the schema is complete.
SCHEMA_PREFIX = ".tvmopt-schema-"
ERROR_PREFIX = "tvmopt-error-"
_MOST_REPORTS = 20
# A folder of that age without a lock has lost its process between two system calls.
_OLD_S = 3600.0
_LOCK, _NEW_LOCK = ".lock", ".lock-new"
_VARIABLE = "TMPDIR"


@contextmanager
def scratch_folder(prefix: str = PREFIX, parent: Path | None = None) -> Iterator[Path]:
    """A new private folder in ``parent``, by default the temporary one; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mode 0700
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(folder / _NEW_LOCK, flags, 0o600)
    try:
        # It gets its name when it is locked: a lock file that is not is a dead process's.
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _NEW_LOCK).rename(folder / _LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Let this process and its children make their temporary files in one private folder.

    Folders that dead commands have left beside it are removed first.
    """
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    with scratch_folder(parent=parent) as folder, variable(_VARIABLE, str(folder)):
        tempfile.tempdir = str(folder)
        try:
            yield folder
        finally:
            tempfile.tempdir = None


def sweep(parent: Path, prefix: str = PREFIX) -> list[Path]:
    """Remove the folders of dead processes of this user in ``parent``; returns them."""
    removed = []
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another process sweeps, too
            if _is_abandoned(folder):
                shutil.rmtree(folder)
                removed.append(folder)
    return removed


def keep_report(text: str) -> Path:
    """Write ``text`` to a private file in the temporary folder; the oldest such files go."""
    number, name = tempfile.mkstemp(prefix=ERROR_PREFIX, suffix=".txt")  # mode 0600
    with os.fdopen(number, "w") as file:
        file.write(text)
    path, own = Path(name), []
    for other in path.parent.glob(f"{ERROR_PREFIX}*.txt"):
        with contextlib.suppress(FileNotFoundError):
            found = other.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                own.append((found.st_mtime_ns, other))
    for _, old in sorted(own)[:-_MOST_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def _is_abandoned(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # just made, or not one of these
        others = {entry.name for entry in folder.iterdir()} - {_NEW_LOCK}
        return time.time() - found.st_mtime > _OLD_S and not others
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True

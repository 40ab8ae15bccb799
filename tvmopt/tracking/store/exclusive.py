"""Machine-wide lock: one measurement at a time, without concurrent work."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvmopt.digest import sha256_text
from tvmopt.errors import EnvironmentSetupError

_FOLDER_MODE = 0o700
_SHARED = Path("/tmp")  # the same for all commands, whatever TMPDIR is
_FILE_MODE = 0o600


@contextmanager
def turn(measuring: bool, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Hold the machine while the body runs.

    Measuring holds it alone; work that measures nothing holds it together with other such work.
    Whoever waits to measure goes before those that come later. The operating system gives a turn
    back when its process dies.

    Args:
        measuring: Whether the body measures.
        say: Told when there is somebody to wait for.
    """
    kind = fcntl.LOCK_EX if measuring else fcntl.LOCK_SH
    with _opened("turnstile") as turnstile, _opened("machine") as lock:
        _lock(turnstile, fcntl.LOCK_EX, lambda: None)
        try:
            who = "what runs here to end" if measuring else "a measurement here"
            text = f"waiting for {who}, so that neither disturbs the other"
            _lock(lock, kind, lambda: say(text))
        finally:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


@contextmanager
def alone(what: str, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Hold ``what`` on this machine while the body runs; who comes later waits, and is told so."""
    with _opened(sha256_text(what)[:16]) as lock:
        _lock(lock, fcntl.LOCK_EX, lambda: say("waiting for another process to do the same"))
        yield


def lock_folder() -> Path:
    """Where the locks are: under ``XDG_CACHE_HOME``, by default ``~/.cache``; made when needed.

    Where that cannot be written to, as in many containers, a private folder in /tmp takes its
    place.

    Raises:
        EnvironmentSetupError: When that folder is not this user's alone.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "tvmopt"
    try:
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass  # a read-only home
    return _private_folder(_SHARED / f"tvmopt-locks-{os.getuid()}")


def _private_folder(folder: Path) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=_FOLDER_MODE)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EnvironmentSetupError(
            f"'{folder}' must be a folder of this user alone, but it is not; remove it, or set "
            "XDG_CACHE_HOME to a folder that can be written to"
        )
    return folder


@contextmanager
def _opened(name: str) -> Iterator[int]:
    path = lock_folder() / f"{name}.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        yield file
    finally:
        os.close(file)  # and so unlocked


def _lock(file: int, kind: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, kind)

"""Work in forks of this process, beside it: TVM's passes and the ranking of kernels use one core.

Threads would not share that work, because of Python's lock. Only a process that allows it forks:
what another thread has locked stays locked in a fork.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tvmopt import host
from tvmopt.process import die_with_parent

T = TypeVar("T")

# Seconds to wait for a fork after which it is taken for one that hangs.
_LONGEST_S = 600.0
_is_allowed = False


def allow() -> None:
    """Let this process fork: a process of a stage, of whose threads one works and others wait."""
    global _is_allowed
    _is_allowed = True


@contextlib.contextmanager
def forked(compute: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Start ``compute`` in a fork of this process, and yield a function that returns its result.

    That function computes here what no fork returns: where there is no second core, where the
    process does not allow forks, or where the fork fails, so that an error is raised here.

    Args:
        compute: Returns the number; it may start no thread and use none of this process.
    """
    if not may_fork():
        yield compute
        return
    fork = _Fork(compute)
    try:
        yield fork.result
    finally:
        fork.end()


def run_all(tasks: Sequence[Callable[[], object]]) -> None:
    """Run tasks whose results are files: in forks, as many at once as there are cores.

    A task whose fork fails is run here, so that its error is raised here.
    """
    if len(tasks) < 2 or not may_fork():
        for task in tasks:
            task()
        return
    waiting = list(reversed(tasks))
    running: list[_Fork] = []
    try:
        while waiting or running:
            while waiting and len(running) < host.usable_cores():
                running.append(_Fork(_one(waiting.pop())))
            running[0].result()
            running.pop(0).end()
    finally:
        for fork in running:
            fork.end()


def compute_all(compute: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
    """Return ``compute(item)`` of each item; all cores compute, each its part of the items.

    Args:
        compute: Returns what JSON can hold.
        items: Its arguments.
    """
    parts = min(len(items), host.usable_cores()) if may_fork() else 1
    if parts < 2:
        return [compute(item) for item in items]
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        files = [Path(scratch) / f"{part}.json" for part in range(parts)]
        run_all(
            [
                functools.partial(_write_all, compute, items[part::parts], file)
                for part, file in enumerate(files)
            ]
        )
        found: list[Any] = [None] * len(items)
        for part, file in enumerate(files):
            found[part::parts] = json.loads(file.read_text("utf-8"))
    return found


def _write_all(compute: Callable[[T], Any], items: Sequence[T], file: Path) -> None:
    file.write_text(json.dumps([compute(item) for item in items]), "utf-8")


def _one(task: Callable[[], object]) -> Callable[[], float]:
    """Return a function that runs ``task`` and returns 1."""

    def run() -> float:
        task()
        return 1.0

    return run


def may_fork() -> bool:
    """Return whether this process forks: it allows that, and there is a second core."""
    return _is_allowed and sys.platform == "linux" and host.usable_cores() > 1


class _Fork:
    """A fork of this process that computes a number.

    Args:
        compute: Returns the number.
    """

    def __init__(self, compute: Callable[[], float]) -> None:
        self._compute = compute
        self._reader, writer = os.pipe()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads only wait for work
            self._pid = os.fork()
        if self._pid == 0:
            _compute(compute, self._reader, writer, parent)
        os.close(writer)

    def result(self) -> float:
        """Return the number; computed here where the fork has none."""
        ready, _, _ = select.select([self._reader], [], [], _LONGEST_S)
        text = os.read(self._reader, 64) if ready else b""
        return float.fromhex(text.decode()) if text else self._compute()

    def end(self) -> None:
        """End the fork, also one that still computes."""
        os.close(self._reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _compute(compute: Callable[[], float], reader: int, writer: int, parent: int) -> NoReturn:
    """Write the result as text into the pipe, and end this process."""
    try:
        die_with_parent(parent)
        os.close(reader)
        os.write(writer, float(compute()).hex().encode())
    except BaseException:  # the other process computes it again, and says what is wrong
        os._exit(1)
    os._exit(0)

"""Compute a number in a fork of this process, while it computes something else.

TVM's passes and the ranking of kernels use one core, and Python's lock keeps threads from sharing
that work.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator

from tvmopt import host

# Seconds to wait for a fork after which it is taken for one that hangs.
_LONGEST_S = 120.0


@contextlib.contextmanager
def forked(compute: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Start ``compute`` in a fork of this process, and yield a function that returns its result.

    That function computes here what the fork does not return: where there is no second core, or
    where the fork fails, so that an error is raised here.

    Args:
        compute: Returns the number; it may start no thread and use none of this process.
    """
    if sys.platform != "linux" or host.usable_cores() < 2:
        yield compute
        return
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads only wait for work
        pid = os.fork()
    if pid == 0:
        _compute(compute, reader, writer)
    os.close(writer)
    try:
        yield lambda: _read(reader, compute)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _compute(compute: Callable[[], float], reader: int, writer: int) -> None:
    """Write the result as text into the pipe, and end this process."""
    try:
        os.close(reader)
        os.write(writer, float(compute()).hex().encode())
    except BaseException:  # the other process computes it again, and says what is wrong
        os._exit(1)
    os._exit(0)


def _read(reader: int, compute: Callable[[], float]) -> float:
    ready, _, _ = select.select([reader], [], [], _LONGEST_S)
    text = os.read(reader, 64) if ready else b""
    return float.fromhex(text.decode()) if text else compute()

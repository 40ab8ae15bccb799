"""Call onnx functions in a forked child: a C++ assertion in onnx may abort it, or it never ends."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

_CPU_SECONDS = 20


def answer(work: Callable[[], bytes]) -> bytes | None:
    """Return the result of ``work`` from a forked child; None when it raises, aborts or hangs."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
            os.close(2)  # the message of the assertion
            with os.fdopen(write, "wb") as file:
                file.write(work())
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        content = file.read()
    _, status = os.waitpid(pid, 0)
    return None if status else content

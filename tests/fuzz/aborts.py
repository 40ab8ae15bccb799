"""Call onnx functions in a forked child, because a C++ assertion in onnx may abort the process."""

from __future__ import annotations

import os
from collections.abc import Callable


def answer(work: Callable[[], bytes]) -> bytes | None:
    """Return the result of ``work`` from a forked child; None when it raises or aborts."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
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

"""Hold Ctrl-C back while TVM's search is on the stack.

TVM calls back into Python from its own threads; a KeyboardInterrupt raised there crosses C++ code
that was not made for it, and the process dies with a segmentation fault now and then.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Deliver a SIGINT that comes inside the block only at its end.

    Outside the main thread, where Python delivers no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        # None: a handler that Python did not install and cannot put back.
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
        if pending:
            signal.raise_signal(signal.SIGINT)

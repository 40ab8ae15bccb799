"""Defer SIGINT while TVM's search is on the call stack.

TVM calls back into Python from its own threads. A KeyboardInterrupt raised there unwinds through
C++ frames that do not expect it, and the process sometimes ends with a segmentation fault.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Deliver a SIGINT that arrives inside the block only at the end of the block.

    Outside the main thread this does nothing, because Python delivers signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        # None: Python did not install the previous handler and cannot restore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
        if pending:
            signal.raise_signal(signal.SIGINT)

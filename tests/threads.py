"""Run a function in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_threads(run: Callable[[int], None], count: int = 8) -> None:
    """Call ``run`` with 0 to ``count - 1``, each in a thread; return when all have ended."""
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

"""Time kernels on a CUDA GPU back to back with CUDA graphs, free of launch overhead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tvmopt.device.cuda_graph import Stream
from tvmopt.measure.interleave import Timing

#: Approximate duration in seconds of a captured burst.
BURST_S = 3e-4
# Maximum number of calls in a burst.
_MOST_CALLS = 100


class GraphTimer:
    """Time kernels on the first GPU, on a separate stream.

    Use it as a context manager: inside, TVM launches on that stream.
    """

    def __enter__(self) -> GraphTimer:
        self._stream = Stream()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Redirect TVM's launches to this timer's stream."""
        with self._stream.launching():
            yield

    def wait(self) -> None:
        """Wait for the work on this timer's stream, with which other streams do not synchronise."""
        self._stream.wait()

    def timing(self, run: Callable[[], None]) -> Timing:
        """Return a function that gives the mean seconds of one ``run`` within a burst.

        The burst is captured at the first timing. Earlier work of the thread may grow TVM's
        workspace pool, which would change the addresses in a captured graph.

        Args:
            run: Launches the same work on every call, without waiting for it.
        """
        recorded: list[tuple[Callable[[], None], int]] = []

        def timed(_times: int) -> float:
            if not recorded:
                recorded.append(self._burst(run))
            launch, count = recorded[0]
            return self._stream.seconds(launch) / count

        return timed

    def _burst(self, run: Callable[[], None]) -> tuple[Callable[[], None], int]:
        """Capture a burst of runs; return its launcher and the number of runs."""
        with self.launching():
            run()
            once = self._stream.seconds(run)
        count = max(1, min(_MOST_CALLS, round(BURST_S / max(once, 1e-7))))
        launch = self._stream.record(run, count)
        self._stream.seconds(launch)
        return launch, count

"""Time kernels on a CUDA GPU as it would run them back to back, without the host's delays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tvmopt.device.cuda_graph import Stream

#: Seconds that a recorded burst lasts, about.
BURST_S = 3e-4
# The most calls in one.
_MOST_CALLS = 100


class GraphTimer:
    """Times calls on the first GPU, on a stream of its own.

    Use as a context manager: inside, TVM launches on that stream.
    """

    def __enter__(self) -> GraphTimer:
        self._stream = Stream()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stream.close()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Inside, what TVM launches goes to this timer's stream."""
        with self._stream.launching():
            yield

    def wait(self) -> None:
        """Wait for what was launched on this timer's stream, which others do not wait for."""
        self._stream.wait()

    def kernel(self, run: Callable[[], None]) -> Callable[[int], float]:
        """A function that gives the mean seconds of one ``run``, of a burst of them.

        It is recorded when it is first timed: what others of the thread run before then may make
        TVM's pool of workspaces grow, and with that the addresses change that a recording names.

        Args:
            run: Launches the same work on every call and does not wait for it.
        """
        recorded: list[tuple[Callable[[], None], int]] = []

        def timed(_times: int) -> float:
            if not recorded:
                recorded.append(self._burst(run))
            launch, count = recorded[0]
            return self._stream.seconds(launch) / count

        return timed

    def _burst(self, run: Callable[[], None]) -> tuple[Callable[[], None], int]:
        """A recording of a burst of runs, and how many it has."""
        with self.launching():
            run()
            once = self._stream.seconds(run)
        count = max(1, min(_MOST_CALLS, round(BURST_S / max(once, 1e-7))))
        launch = self._stream.record(run, count)
        self._stream.seconds(launch)
        return launch, count

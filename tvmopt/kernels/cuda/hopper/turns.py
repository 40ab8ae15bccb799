"""Ping-pong: two consumer warpgroups compute tiles in turn.

The main loop of one overlaps the epilogue of the other, so that the tensor cores stay busy::

    warpgroup 0   main loop 0 | epilogue 0  | main loop 2 | epilogue 2
    warpgroup 1               | main loop 1 | epilogue 1  | main loop 3 | ...

Both consume the same ring: all K blocks of a tile go to one warpgroup, and the other skips them.
An mbarrier wait knows only the parity of a phase. So a warpgroup must not wait for a stage that is
more than one phase ahead: its turn comes when the other has waited for all K blocks before.

The scheme is the ping-pong kernel of CUTLASS 3 (``sm90_gemm_tma_warpspecialized_pingpong``).
"""

from __future__ import annotations

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Threads, arrive_at, const, sync_threads_of, when
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline

# Named barriers of the two warpgroups; CONSUMER_BARRIER of :mod:`.output` is 8.
_FIRST_BARRIER = 9
# One warpgroup arrives, the other one waits.
_THREADS = 256


class Turns:
    """Order of the main loops of two consumer warpgroups; without ping-pong it emits nothing.

    Args:
        config: The configuration.
        threads: Indices of the thread.
        pipeline: The ring of stages.
        k_blocks: K blocks of a tile.
    """

    def __init__(
        self, config: HopperConfig, threads: Threads, pipeline: Pipeline, k_blocks: int
    ) -> None:
        self._active, self._warpgroup = config.pingpong, threads.warpgroup
        self._pipeline, self._k_blocks = pipeline, k_blocks

    def start(self) -> None:
        """Give warpgroup 0 the first turn; its first tile is not for warpgroup 1."""
        if self._active:
            with when(self._warpgroup == 1):
                arrive_at(const(_FIRST_BARRIER), _THREADS)
                self._pipeline.skip(self._k_blocks)

    def wait(self) -> None:
        """Wait until the other warpgroup has issued its main loop."""
        if self._active:
            sync_threads_of(self._warpgroup + _FIRST_BARRIER, _THREADS)

    def hand_over(self) -> None:
        """Let the other warpgroup issue its main loop."""
        if self._active:
            arrive_at(_FIRST_BARRIER + 1 - self._warpgroup, _THREADS)

    def skip(self) -> None:
        """Skip the stages of the other warpgroup's tile, once all own stages are released."""
        if self._active:
            self._pipeline.skip(self._k_blocks)

"""Ring of shared-memory stages: a full and an empty mbarrier of each, current stage and phase.

Phases alternate::

    producer   wait empty[stage]   expect_tx + TMA loads        ->  full[stage] completes
    consumer                       wait full[stage], wgmma      ->  arrive empty[stage]

Producer and consumers visit the stages in the same order, and each thread keeps the current one.
"""

from __future__ import annotations

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.emit import Barriers, Scalar, const, when


class StageRing:
    """The mbarriers of a ring, and a thread's place in it.

    Args:
        stages: Number of stages.

    Attributes:
        full: An mbarrier for each stage; its TMA loads complete it.
        empty: An mbarrier for each stage; consumers arrive at it.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages

    def allocate_barriers(self, smem: SMEMPool) -> None:
        """Allocate the mbarriers."""
        self.full = Barriers(smem, self._stages)
        self.empty = Barriers(smem, self._stages)

    def init_barriers(self, arrivals: int) -> None:
        """Initialise the mbarriers; for one thread.

        Args:
            arrivals: Arrivals that empty a stage.
        """
        self.full.init(1)
        self.empty.init(arrivals)

    def start(self) -> None:
        """Emit the current stage and its phase, of each thread."""
        self._stage = Scalar("int32", 0)
        self._phase = Scalar("int32", 0)

    @property
    def stage(self) -> Expr:
        """The current stage."""
        return self._stage.value if self._stages > 1 else const(0)

    def advance(self) -> None:
        """Go to the next stage."""
        if self._stages == 1:
            self._phase.set(self._phase.value ^ 1)
            return
        self._stage.set(self._stage.value + 1)
        with when(self._stage.value >= self._stages):
            self._stage.set(0)
            self._phase.set(self._phase.value ^ 1)

    def skip(self, steps: int) -> None:
        """Go ``steps`` stages on: another warpgroup consumes these."""
        rounds, rest = divmod(steps, self._stages)
        if rounds % 2:
            self._phase.set(self._phase.value ^ 1)
        if not rest:
            return
        self._stage.set(self._stage.value + rest)
        with when(self._stage.value >= self._stages):
            self._stage.set(self._stage.value - self._stages)
            self._phase.set(self._phase.value ^ 1)

    def wait_empty(self) -> None:
        """Producer: wait until the stage is empty."""
        self.empty.wait(self.stage, self._phase.value ^ 1)

    def wait_full(self) -> Expr:
        """Consumer: wait until the stage is loaded; return its index."""
        self.full.wait(self.stage, self._phase.value)
        return self.stage

"""Base of the configurations of families with a register tile."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tvmopt.kernels.cpu.hint import CpuHint

#: Layout of the weight: read in place, packed at every call, or prepacked at build time.
Packing = Literal["none", "runtime", "prepacked"]


@dataclasses.dataclass(frozen=True)
class TileConfig(CpuHint):
    """Configuration of a register tile and of the loops around it.

    Attributes:
        register_tile: Elements of each data-parallel axis of the anchor, the axes as the family
            normalises them; the last one is vectorised.
        loop_order: Order of the loops around the tile, outermost first, as indices of the axes.
        parallel_loops: Number of outermost loops that run in parallel; 0 is none.
        producer_depth: compute_at depth of the producers (padding): number of loops around them; 0
            is a separate loop nest at the root.
    """

    register_tile: tuple[int, ...] = ()
    loop_order: tuple[int, ...] = ()
    parallel_loops: int = 0
    producer_depth: int = 0

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector width and loop order."""
        return self.template, self.register_tile[-1:], self.loop_order


@dataclasses.dataclass(frozen=True)
class ContractionConfig(TileConfig):
    """Configuration of a contraction.

    Attributes:
        packing: Layout of the weight.
        intrinsic: Name of the tensor intrinsic; empty for vector FMAs.
    """

    packing: Packing = "none"
    intrinsic: str = ""

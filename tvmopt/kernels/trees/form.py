"""Form of an ensemble's function: order and block sizes of its loops."""

from __future__ import annotations

import dataclasses

#: Walks in flight.
LANES = 8


@dataclasses.dataclass(frozen=True)
class Form:
    """Order of the loops.

    Attributes:
        trees_in_flight: Whether the walks in flight are trees of one row, not rows of one tree.
        block: Rows of a block, whose keys stay in L1 while it goes through all trees.
        parallel: Whether threads share the rows.
    """

    trees_in_flight: bool
    block: int
    parallel: bool

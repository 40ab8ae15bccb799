"""TMA multicast within a cluster: each thread block loads a part and multicasts it.

Ranks in a cluster of ``cluster_m`` x ``cluster_n`` = 2 x 2 (M x N)::

             cta_n=0  cta_n=1
    cta_m=0    0        2      blocks in a row share tile rows: multicast the left operand
    cta_m=1    1        3      blocks in a column share tile columns: multicast the right operand

Example, two blocks in a row: without multicast each loads the whole left tile; with it each loads
half of the tile into its own and the other's shared memory.
"""

from __future__ import annotations

from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder


class Multicast:
    """Position of a thread block in its cluster, multicast masks, and loaders.

    Args:
        config: Cluster shape, among others.
        rank: Rank of the block in the cluster, M fastest.

    Attributes:
        cta_m: Position along M (0 without a cluster).
        cta_n: Position along N (0 without a cluster).
        loaders: Number of blocks that load for this one, including itself.
    """

    def __init__(self, config: HopperConfig, rank: Expr | int) -> None:
        self._config = config
        self.loaders = config.cluster_m + config.cluster_n - 1
        self.cta_m: Expr | int
        self.cta_n: Expr | int
        if config.cluster_n == 1:
            self.cta_m, self.cta_n = (rank if config.cluster_m > 1 else 0), 0
        elif config.cluster_m == 1:
            self.cta_m, self.cta_n = 0, rank
        else:
            self.cta_m, self.cta_n = (
                remainder(rank, config.cluster_m),
                quotient(rank, config.cluster_m),
            )

    @property
    def left_mask(self) -> Expr | int:
        """Multicast mask of the left operand (tile rows); 0 without multicast."""
        c = self._config
        if c.cluster_n == 1:
            return 0
        return _shifted(sum(1 << c.cluster_m * i for i in range(c.cluster_n)), self.cta_m)

    @property
    def right_mask(self) -> Expr | int:
        """Multicast mask of the right operand (tile columns); 0 without multicast."""
        c = self._config
        if c.cluster_m == 1:
            return 0
        return _shifted((1 << c.cluster_m) - 1, self.cta_n * c.cluster_m)

    def loader(self, number: Expr | int) -> Expr:
        """Return the rank of loader ``number`` of this block; same-column blocks come first."""
        c = self._config
        number = T.min(number, const(self.loaders - 1))
        column = self.cta_n * c.cluster_m + number
        if c.cluster_n == 1:
            return column
        # Then the blocks of the same row, cyclically from the next one on.
        other = remainder(self.cta_n + number + (1 - c.cluster_m) % c.cluster_n, c.cluster_n)
        return T.Select(number < c.cluster_m, column, self.cta_m + other * c.cluster_m)


def _shifted(mask: int, by: Expr | int) -> Expr | int:
    return mask << by if isinstance(by, int) else const(mask) << by

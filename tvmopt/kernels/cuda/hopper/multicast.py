"""Thread blocks of a cluster that share loads: each loads a part for all that want it.

Blocks one above the other multiply the same columns, those beside each other the same rows.
before -> after, of two blocks beside each other: each loads all rows of its tile -> each loads half
of them, into its own shared memory and the other's.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder


class Sharing:
    """Where a thread block is in its cluster, and whom it loads for.

    Blocks are numbered downwards first. One that loads alone is above and left of all.

    Args:
        config: How tiles are computed.
        rank: The block's number in the cluster.

    Attributes:
        above: How many blocks are above it.
        left: How many are left of it.
        loaders: How many blocks load for it, itself among them.
    """

    def __init__(self, config: Config, rank: Any) -> None:
        self._config = config
        self.loaders = config.cluster + config.beside - 1
        self.above: Any
        self.left: Any
        if config.beside == 1:
            self.above, self.left = (rank if config.cluster > 1 else 0), 0
        elif config.cluster == 1:
            self.above, self.left = 0, rank
        else:
            self.above, self.left = remainder(rank, config.cluster), quotient(rank, config.cluster)

    @property
    def of_rows(self) -> Any:
        """The blocks that get what this one loads of the rows, a bit for each; 0 where it alone."""
        c = self._config
        if c.beside == 1:
            return 0
        return _shifted(sum(1 << c.cluster * i for i in range(c.beside)), self.above)

    @property
    def of_columns(self) -> Any:
        """The same of the columns."""
        c = self._config
        if c.cluster == 1:
            return 0
        return _shifted((1 << c.cluster) - 1, self.left * c.cluster)

    def loader(self, number: Any) -> Any:
        """The rank of one of the blocks that load for this one: those of its columns come first."""
        c = self._config
        number = T.min(number, const(self.loaders - 1))
        column = self.left * c.cluster + number
        if c.beside == 1:
            return column
        # The next of those beside each other, and so on around.
        other = remainder(self.left + number + (1 - c.cluster) % c.beside, c.beside)
        return T.Select(number < c.cluster, column, self.above + other * c.cluster)


def _shifted(mask: int, by: Any) -> Any:
    return mask << by if isinstance(by, int) else const(mask) << by

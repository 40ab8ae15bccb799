"""Output of a kernel: where its tiles lie in the output tensor, what the epilogue reads, stores."""

from __future__ import annotations

import abc

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Threads
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.residual import Residual, residual_of
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.wgmma import Accumulators

#: Named barrier of all consumer warpgroups; the barriers of one warpgroup have lower numbers.
CONSUMER_BARRIER = 8


class Tiling(abc.ABC):
    """Mapping of tiles to the output tensor.

    Attributes:
        shape: Extents of the output, as :meth:`place` indexes it.
        batch: Batch extent of the problem.
    """

    shape: tuple[Expr | int, ...]
    batch: int = 1

    @abc.abstractmethod
    def extents(self) -> tuple[Expr | int, Expr | int]:
        """Return rows and columns of the tiled problem (swapped with ``swap_ab``), int32."""

    @abc.abstractmethod
    def place(
        self, tile: Tile, row: Expr, column: Expr
    ) -> tuple[list[Expr], list[tuple[Expr, Expr | int | None]]]:
        """Return where element (row, column) of C lies in the output, with bounds to check.

        Returns:
            The output indices; and the pairs (index, bound), where bound is None if the index
            cannot exceed its extent.
        """

    @abc.abstractmethod
    def corner(self, tile: Tile, warpgroup: Expr, first: int) -> list[Expr]:
        """Return the TMA coordinates of one warpgroup's 128-byte-wide epilogue tile.

        Args:
            tile: The tile.
            warpgroup: The warpgroup.
            first: Offset along the rows of C from the first element of the warpgroup's tile.
        """

    @abc.abstractmethod
    def tensor_map(self, buffer: tirx.Buffer, dtype: str) -> Expr:
        """Emit the TMA descriptor of a tensor of the output's shape, for epilogue tiles."""


class Output:
    """The output tensor with its epilogue, in host code.

    Attributes:
        tiling: How tiles cover the tensor.
        dtype: Its dtype.
        accumulator: Dtype of the accumulators.
        epilogue: Elementwise epilogue.
        buffer: The tensor.
        inputs: The buffers that the epilogue reads.
        store_map: TMA descriptor of the stores; None for stores through shared memory.
        residual: Residual input that TMA prefetches; None without one.
        residual_map: Its TMA descriptor.
    """

    def __init__(
        self, config: HopperConfig, tiling: Tiling, dtype: str, accumulator: str,
        epilogue: Epilogue, parameters: Parameters,
    ) -> None:  # fmt: skip
        self.tiling, self.dtype, self.accumulator = tiling, dtype, accumulator
        self.epilogue = epilogue.narrowed
        self.buffer, self.inputs = parameters.out, parameters.inputs
        self.store_map: Expr | None = None
        self.residual: Residual | None = None
        self.residual_map: Expr | None = None
        if config.smem_store:
            return
        self.store_map = tiling.tensor_map(self.buffer, dtype)
        # The residual lands in the epilogue tile, which must therefore hold the whole tile.
        static = all(isinstance(extent, int) for extent in tiling.shape)
        if static and config.buffers_hold_tile(dtype):
            self.residual = residual_of(self.epilogue, tiling.shape, dtype)
        if self.residual is not None:
            self.epilogue = self.residual.epilogue
            source = self.inputs[self.residual.number]
            self.residual_map = tiling.tensor_map(source, str(source.dtype))

    @property
    def maps(self) -> list[Expr]:
        """TMA descriptors of the store and of the residual."""
        return [m for m in (self.store_map, self.residual_map) if m is not None]


class Store:
    """Applies the epilogue to a tile and stores it. Hooks are empty unless a store needs them."""

    def __init__(
        self, config: HopperConfig, output: Output, threads: Threads, smem: SMEMPool
    ) -> None:
        self._config, self._output, self._threads = config, output, threads

    def store(self, tile: Tile, columns: range, accumulators: Accumulators) -> None:
        """Store these columns of a tile."""
        raise NotImplementedError

    def allocate_barriers(self, smem: SMEMPool) -> None:
        """Allocate the mbarriers that the store needs."""

    def init_barriers(self) -> None:
        """Initialise the mbarriers; for one thread."""

    def start(self) -> None:
        """Emit the state of each consumer thread."""

    def prefetch(self, tile: Tile) -> None:
        """Issue loads of the epilogue's inputs before the main loop of a tile."""

    def drain(self) -> None:
        """Wait until the stores have read shared memory."""

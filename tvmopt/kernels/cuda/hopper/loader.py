"""Interface of a loader: the TMA loads of one pipeline stage."""

from __future__ import annotations

import abc

from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.smem_layout import OperandLayout
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile


class Loader(abc.ABC):
    """Loads both operands, a K block at a time.

    Attributes:
        dtype: Dtype of the operands.
        k_blocks: K blocks of the whole reduction.
        group: Pipeline stages that each of ``k_blocks`` takes.
        k_steps: wgmma K steps (32 bytes each) of a K block.
        left_layout: Shared-memory layout of the left operand (tile rows) in a stage.
        right_layout: Shared-memory layout of the right operand (tile columns).
        maps: TMA descriptors, made in host code.
    """

    dtype: str
    k_blocks: int
    group: int = 1
    k_steps: int
    left_layout: OperandLayout
    right_layout: OperandLayout
    maps: list[Expr]

    @abc.abstractmethod
    def stage_bytes(self, tile: Tile) -> Expr | int:
        """Return the transaction bytes of one stage; fewer in a ragged last tile."""

    @abc.abstractmethod
    def load(self, pipeline: Pipeline, slot: Expr, k_block: Expr, tile: Tile) -> None:
        """Issue the TMA loads into stage ``slot``; stages are counted along the reduction."""

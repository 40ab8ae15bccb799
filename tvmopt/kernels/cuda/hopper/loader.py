"""Interface of a loader: the TMA loads of one pipeline stage."""

from __future__ import annotations

import abc

from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.smem_layout import OperandLayout
from tvmopt.kernels.cuda.hopper.split_float32 import TERMS
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile


class Loader(abc.ABC):
    """Loads both operands, a K block at a time.

    Attributes:
        dtype: Dtype of the operands.
        k_blocks: K blocks of the whole reduction.
        terms: Products of each K block: the part of the left and of the right operand that each
            multiplies; one product of whole operands but for :mod:`.split_float32`.
        k_steps: wgmma K steps (32 bytes each) of a K block.
        left_layout: Shared-memory layout of the left operand (tile rows) in a stage.
        right_layout: Shared-memory layout of the right operand (tile columns).
        maps: TMA descriptors, made in host code.
    """

    dtype: str
    k_blocks: int
    terms: tuple[tuple[int, int], ...] = TERMS[:1]
    k_steps: int
    left_layout: OperandLayout
    right_layout: OperandLayout
    maps: list[Expr]

    @abc.abstractmethod
    def stage_bytes(self, tile: Tile) -> Expr | int:
        """Return the transaction bytes of one stage; fewer in a ragged last tile."""

    @abc.abstractmethod
    def load(self, pipeline: Pipeline, slot: Expr, k_block: Expr, tile: Tile, term: int) -> None:
        """Issue the TMA loads of one K block, for one of ``terms``, into stage ``slot``."""

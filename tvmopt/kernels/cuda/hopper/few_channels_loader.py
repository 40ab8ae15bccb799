"""Loader of a convolution of few input channels (first layers): K blocks of whole kernel rows.

:mod:`.few_channels_problem` defines the K blocks. The image must be packed before, by
:mod:`.few_channels` or by :mod:`.conv`.
"""

from __future__ import annotations

from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import const
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.pixels import PixelTiling
from tvmopt.kernels.cuda.hopper.problem import BYTES
from tvmopt.kernels.cuda.hopper.smem_layout import SWIZZLE, layout_of, layout_of_blocks
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tensor_map, tma_load


class FewChannelsLoader(Loader):
    """Loads the image rows under a group of kernel rows, and the weight's columns.

    The descriptor of the image has a fifth axis: kernel row of the K block. Its stride is that of
    the image's rows, so that windows overlap.
    """

    def __init__(
        self, problem: FewChannelsProblem, config: HopperConfig, tiling: PixelTiling,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        p = self._problem = problem
        self._config, self._tiling = config, tiling
        rows = p.loaded_rows
        self.dtype, self.k_blocks, self.k_steps = p.dtype, p.k_blocks, p.k_steps
        self.left_layout = layout_of_blocks(p.window * 2, config.warpgroup_m)
        self.right_layout = layout_of(True, config.tile_k)
        line, box = p.width * 2, tiling.box
        self._image_map = tensor_map(
            parameters.a,
            p.dtype,
            (p.window, p.out_size[1], p.height - rows + 1, p.images, rows),
            (p.column_stride * 2, line, p.height * line, line),
            (p.window, box[2], box[1] * p.row_stride, box[0], rows),
            steps=(1, 1, p.row_stride, 1, 1),
            swizzle=SWIZZLE[p.window * 2],
        )
        depth = p.kernel_rows * p.window
        self._weight_map = tensor_map(
            parameters.b, p.dtype, (depth, p.filters), (depth * 2,), (64, config.tile_n)
        )
        self.maps = [self._image_map, self._weight_map]

    def stage_bytes(self, tile: Tile) -> Expr | int:
        """Return the transaction bytes of one stage."""
        c, p = self._config, self._problem
        missing = (p.fold - p.loaded_rows) * p.window * BYTES[p.dtype]
        return c.stage_bytes - c.tile_m * missing

    def load(self, pipeline: Pipeline, slot: Expr, k_block: Expr, tile: Tile) -> None:
        """Issue the TMA loads of a stage: the rows under each pixel box, the weight's columns."""
        c, p = self._config, self._problem
        barrier = pipeline.full.pointer(slot)
        for group in range(c.tile_warpgroups):
            image, line, column = self._tiling.box_corner(tile.index * c.tile_warpgroups + group)
            tma_load(
                pipeline.left.ptr_to([slot, group * c.warpgroup_m * c.tile_k]),
                self._image_map,
                [const(0), column, line * p.row_stride + k_block * p.fold, image, const(0)],
                barrier,
            )
        place = [k_block * c.tile_k, tile.column]
        tma_load(pipeline.right.ptr_to([slot, 0]), self._weight_map, place, barrier)

"""Loader of an implicit-GEMM convolution: TMA loads of pixel boxes, a K block a tap and channels.

For each tap and each slice of the input channels, TMA loads the pixels of the box, shifted by the
tap, with the stride as element stride. Out-of-bounds pixels read as zero, which is the padding.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.pixels import PixelTiling
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES, ceil_div
from tvmopt.kernels.cuda.hopper.smem_layout import SWIZZLE, layout_of, layout_of_blocks
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tensor_map, tma_load


class Im2colLoader(Loader):
    """Loads the pixels under a tap, and the weight's columns.

    Pixels of 32 or 64 bytes: a K block holds several taps. Pixels of more than 128 bytes: the
    channels are cut into equal slices.
    """

    def __init__(
        self, problem: ConvProblem, config: HopperConfig, tiling: PixelTiling,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        p = self._problem = problem
        self._config, self._tiling = config, tiling
        self.dtype, self.k_blocks, self.k_steps = p.dtype, p.k_blocks, p.k_steps
        self.left_layout = layout_of(True, config.tile_k)
        if p.fold > 1:  # each of several taps is a separate block
            self.left_layout = layout_of_blocks(K_BLOCK_BYTES // p.fold, config.warpgroup_m)
        self.right_layout = layout_of(p.weight_k_major, config.tile_k)
        # 1 x 1 kernel: the strides are in the descriptor's tensor; otherwise element strides.
        self._strided_map = p.kernel == (1, 1) and not any(p.padding[:2])
        self._image_map = self._map_of_image(parameters.a)
        self._weight_map = self._map_of_weight(parameters.b)
        self.maps = [self._image_map, self._weight_map]

    def _map_of_image(self, image: tirx.Buffer | Expr) -> Expr:
        """Emit the TMA descriptor of the NHWC image."""
        p, size, box = self._problem, BYTES[self._problem.dtype], self._tiling.box
        sh, sw = p.stride
        pixel = pitch_of(p.channels, p.dtype) * size
        wide = self._config.tile_k // p.fold
        if self._strided_map:
            return tensor_map(
                image,
                p.dtype,
                (p.channels, ceil_div(p.width, sw), ceil_div(p.height, sh), p.images),
                (sw * pixel, sh * p.width * pixel, p.height * p.width * pixel),
                (wide, box[2], box[1], box[0]),
            )
        return tensor_map(
            image,
            p.dtype,
            (p.channels, p.width, p.height, p.images),
            (pixel, p.width * pixel, p.height * p.width * pixel),
            (wide, box[2] * sw, box[1] * sh, box[0]),
            steps=(1, sw, sh, 1),
            swizzle=SWIZZLE[wide * size],
        )

    def _map_of_weight(self, weight: tirx.Buffer | Expr) -> Expr:
        """Emit the TMA descriptor of the weight: filters x (taps, channels), or the transpose."""
        p, size, tile_k = self._problem, BYTES[self._problem.dtype], self._config.tile_k
        taps = p.kernel[0] * p.kernel[1]
        # Taps are contiguous in one K axis where a K block spans several.
        split = p.fold == 1
        depth = (p.channels, taps) if split else (taps * p.channels,)
        one = (1,) if split else ()
        if p.weight_k_major:
            pixel = pitch_of(p.channels, p.dtype) * size
            strides = (*((pixel,) if split else ()), taps * pixel)
            box = (tile_k, *one, self._config.tile_n)
            return tensor_map(weight, p.dtype, (*depth, p.filters), strides, box)
        row = pitch_of(p.filters, p.dtype) * size
        strides = (row, *((p.channels * row,) if split else ()))
        return tensor_map(weight, p.dtype, (p.filters, *depth), strides, (64, tile_k, *one))

    def stage_bytes(self, tile: Tile) -> Expr | int:
        """Return the transaction bytes of one stage."""
        return self._config.stage_bytes

    def load(self, pipeline: Pipeline, slot: Expr, k_block: Expr, tile: Tile) -> None:
        """Issue the TMA loads of a stage: a pixel box for each warpgroup, the weight's columns."""
        c, p = self._config, self._problem
        barrier = pipeline.full.pointer(slot)
        window, channel = k_block, const(0)
        if p.channel_slices > 1:
            each = p.k_steps * 32 // BYTES[p.dtype]
            window = build.Bind(quotient(k_block, p.channel_slices))
            channel = build.Bind(remainder(k_block, p.channel_slices) * each)
        boxed = c.warpgroup_m * c.tile_k
        for group in range(c.tile_warpgroups):
            corner = self._tiling.box_corner(tile.index * c.tile_warpgroups + group)
            for f in range(p.fold):
                tap = k_block * p.fold + f if p.fold > 1 else window
                image, line, column = self._shifted(corner, tap)
                place = pipeline.left.ptr_to([slot, group * boxed + f * (boxed // p.fold)])
                tma_load(place, self._image_map, [channel, column, line, image], barrier)
        places = [k_block * c.tile_k] if p.fold > 1 else [channel, window]
        if p.weight_k_major:
            target = pipeline.right.ptr_to([slot, 0])
            tma_load(target, self._weight_map, [*places, tile.column], barrier)
            return
        for first in range(0, c.tile_n, 64):
            target = pipeline.right.ptr_to([slot, first * c.tile_k])
            tma_load(target, self._weight_map, [tile.column + first, *places], barrier)

    def _shifted(self, corner: tuple[Expr, Expr, Expr], tap: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the TMA coordinates (image, row, column) of the box at ``corner`` for one tap."""
        p = self._problem
        image, line, column = corner
        if self._strided_map:
            return corner
        r, s = quotient(tap, p.kernel[1]), remainder(tap, p.kernel[1])
        taps = p.kernel[0] * p.kernel[1]
        if taps % p.fold:  # past the last tap: an image out of bounds reads as zeros
            image = tirx.Select(tap < taps, image, const(p.images))
        return (
            image,
            line * p.stride[0] + (r * p.dilation[0] - p.padding[0]),
            column * p.stride[1] + (s * p.dilation[1] - p.padding[1]),
        )

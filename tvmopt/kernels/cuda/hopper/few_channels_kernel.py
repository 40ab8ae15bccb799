"""Implicit-GEMM convolution of few input channels (first layers): K blocks of whole kernel rows.

:mod:`.few_channels_problem` defines the K blocks. The image must be packed before, by
:mod:`.few_channels` or by :mod:`.conv`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.kernels.cuda.hopper.config import K_BLOCK_BYTES, HopperConfig, HopperConvConfig
from tvmopt.kernels.cuda.hopper.emit import const, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, plain_signature
from tvmopt.kernels.cuda.hopper.pixels import PixelKernel, pixel_function
from tvmopt.kernels.cuda.hopper.problem import KernelSignature
from tvmopt.kernels.cuda.hopper.shared_layout import SWIZZLE, Lines, blocks_of
from tvmopt.kernels.workload import Refusal


def line_signature(problem: LineProblem) -> KernelSignature:
    """Return the default parameters: image, weight, the epilogue's inputs, output."""
    p = problem
    return plain_signature(
        ((p.images, p.height, p.width), p.dtype),
        ((p.filters, p.lines, p.window), p.dtype),
        ((p.images, *p.out_size, p.filters), p.out),
        p.epilogue_or_cast(),
    )


def line_conv(
    problem: LineProblem, config: HopperConvConfig,
    name: str | None = "main", signature: KernelSignature | None = None,
) -> tirx.PrimFunc | Refusal:  # fmt: skip
    """Emit the kernel: a PrimFunc of the image, the weight, the epilogue's inputs, the output.

    Args:
        problem: The packed convolution.
        config: The configuration; the rows of a warpgroup are one pixel box.
        name: Global symbol of the PrimFunc; None for a private one.
        signature: Parameters of the PrimFunc; :func:`line_signature` by default.

    Returns:
        The kernel; a refusal where there is none, or ``config`` does not fit.
    """

    def emit(box: tuple[int, int, int]) -> None:
        parameters = declare(signature or line_signature(problem))
        LineKernel(problem, config, box, parameters).emit()

    return pixel_function(problem.refusal, problem, config, name, emit)


class LineKernel(PixelKernel):
    """Implicit-GEMM main loop over groups of kernel rows."""

    def __init__(
        self, problem: LineProblem, config: HopperConfig, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        super().__init__(problem, config, box, parameters)
        p = self.problem = problem
        line = p.width * 2
        self.x_map = tensor_map(
            parameters.a,
            p.dtype,
            (p.window, p.out_size[1], p.height - p.fold + 1, p.images, p.fold),
            (p.pixel * 2, line, p.height * line, line),
            (p.window, box[2], box[1] * p.step, box[0], p.fold),
            steps=(1, 1, p.step, 1, 1),
            swizzle=SWIZZLE[p.window * 2],
        )
        depth = p.lines * p.window
        self.w_map = tensor_map(
            parameters.b, p.dtype, (depth, p.filters), (depth * 2,), (64, config.tile_n)
        )
        self.maps += [self.x_map, self.w_map]

    def left_lines(self) -> Lines:
        """Return the layout of the left operand: a block for each kernel row, short lines."""
        return blocks_of(self.problem.window * 2, 64 * self.config.m_atoms)

    def load(self, slot: Any, step: Any, tile: Any) -> None:
        """Issue the TMA loads of a stage: the rows under each pixel box, the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        for group in range(c.consumer_warpgroups):
            image, line, column = self.corner(tile.index * c.consumer_warpgroups + group)
            tma_load(
                self.left_ring.ptr_to([slot, group * 64 * c.m_atoms * self.depth]),
                self.x_map,
                [const(0), column, line * p.step + step * p.fold, image, const(0)],
                bar,
            )
        place = [step * (K_BLOCK_BYTES // 2), tile.column]
        tma_load(self.right_ring.ptr_to([slot, 0]), self.w_map, place, bar)

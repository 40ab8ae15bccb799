"""Convolutions of images of few channels, such as a network's first: whole lines of the window.

How they are cut into steps is :mod:`.line_problem`'s; the image must be padded before
(:mod:`.few_channels`, or :mod:`.conv`).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES, Config
from tvmopt.kernels.cuda.hopper.emit import const, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, plain_signature
from tvmopt.kernels.cuda.hopper.pixels import PixelKernel, pixel_function
from tvmopt.kernels.cuda.hopper.problem import Signature
from tvmopt.kernels.cuda.hopper.shared_layout import SWIZZLE, Lines, blocks_of


def line_signature(problem: LineProblem) -> Signature:
    """The image, the weight, the epilogue's inputs, the output."""
    p = problem
    return plain_signature(
        ((p.images, p.height, p.width), p.dtype),
        ((p.filters, p.lines, p.window), p.dtype),
        ((p.images, *p.out_size, p.filters), p.out),
        p.ending(),
    )


def line_conv(
    problem: LineProblem, config: Config, box: tuple[int, int, int] | None = None,
    name: str | None = "main", signature: Signature | None = None,
) -> tirx.PrimFunc:  # fmt: skip
    """The kernel: a function of the input, the weight, the epilogue's inputs, and the output.

    Args:
        problem: What to compute.
        config: How; ``atoms * 64`` rows are one box of pixels.
        box: Images, lines and columns of a box; the one that wastes least by default.
        name: The function's global symbol; None for a private one.
        signature: The function's parameters, where they are others than those.

    Raises:
        ConfigError: When there is no such kernel, or ``config`` does not fit.
    """

    def emit(box: tuple[int, int, int]) -> None:
        parameters = declare(signature or line_signature(problem))
        LineKernel(problem, config, box, parameters).emit()

    return pixel_function(problem.why_not, problem, config, box, name, emit)


class LineKernel(PixelKernel):
    """The main loop over groups of lines of the window."""

    def __init__(
        self, problem: LineProblem, config: Config, box: tuple[int, int, int],
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
            parameters.b, p.dtype, (depth, p.filters), (depth * 2,), (64, config.columns)
        )
        self.maps += [self.x_map, self.w_map]

    def left_lines(self) -> Lines:
        """Each of the lines of the window is a block of its own, with a short line a pixel."""
        return blocks_of(self.problem.window * 2, 64 * self.config.atoms)

    def load(self, slot: Any, step: Any, tile: Any) -> None:
        """Fill one stage: the lines under each warpgroup's box, and the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        for group in range(c.consumers):
            image, line, column = self.corner(tile.index * c.consumers + group)
            tma_load(
                self.left_ring.ptr_to([slot, group * 64 * c.atoms * self.depth]),
                self.x_map,
                [const(0), column, line * p.step + step * p.fold, image, const(0)],
                bar,
            )
        place = [step * (DEPTH_BYTES // 2), tile.column]
        tma_load(self.right_ring.ptr_to([slot, 0]), self.w_map, place, bar)

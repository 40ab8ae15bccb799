"""Implicit-GEMM convolution for Hopper: TMA im2col loads, wgmma, NHWC.

The rows of a tile are boxes of output pixels (images x rows x columns), the columns are output
channels. Images of few channels are packed first (:mod:`.few_channels_problem`); so are other
images and weights whose rows TMA cannot address (:mod:`.packing`).
"""

from __future__ import annotations

import dataclasses
import functools

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.config import HopperConvConfig
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder
from tvmopt.kernels.cuda.hopper.few_channels_loader import FewChannelsLoader
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.im2col_loader import Im2colLoader
from tvmopt.kernels.cuda.hopper.kernel import HopperKernel
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.output import Output
from tvmopt.kernels.cuda.hopper.packing import PackingKernel, pitch_of
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, mark, plain_signature
from tvmopt.kernels.cuda.hopper.pixels import PixelTiling, boxes, why_no_box, why_not
from tvmopt.kernels.cuda.hopper.problem import KernelSignature
from tvmopt.kernels.workload import Refusal


def conv(
    problem: ConvProblem | FewChannelsProblem, config: HopperConvConfig, name: str | None = "main",
    signature: KernelSignature | None = None,
) -> tirx.PrimFunc | Refusal:  # fmt: skip
    """Emit the kernel: a PrimFunc of the image, the weight, the epilogue's inputs, the output.

    Args:
        problem: The convolution; a :class:`FewChannelsProblem` has packed operands.
        config: The configuration; the rows of a warpgroup are one pixel box.
        name: Global symbol of the PrimFunc; None for a private one.
        signature: Parameters of the PrimFunc; :func:`conv_signature` by default.

    Returns:
        The kernel; a refusal where there is none, or ``config`` does not fit.
    """
    tiled = problem.tiled if isinstance(problem, ConvProblem) else problem
    if reason := problem.refusal or why_not(tiled, config):
        return reason
    box = config.pixel_box or boxes(tiled, config.warpgroup_m)[0]
    if reason := why_no_box(tiled, config, box):
        return reason
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        mark(name, "hopper_conv")
        parameters = declare(signature or conv_signature(problem))
        if isinstance(problem, ConvProblem):
            parameters = _pack(problem, parameters)
        tiling = PixelTiling(tiled, config, box)
        accumulator = dtypes.dtype(tiled.dtype).accumulator
        epilogue = tiled.epilogue_or_cast()
        output = Output(config, tiling, tiled.out, accumulator, epilogue, parameters)
        loader: Loader
        if isinstance(tiled, FewChannelsProblem):
            loader = FewChannelsLoader(tiled, config, tiling, parameters)
        else:
            loader = Im2colLoader(tiled, config, tiling, parameters)
        HopperKernel(config, loader, output, output.maps + loader.maps).emit()
    return builder.get()


def conv_signature(problem: ConvProblem | FewChannelsProblem) -> KernelSignature:
    """Return the default parameters: image, weight, the epilogue's inputs, output."""
    p = problem
    image: tuple[int, ...] = (p.images, p.height, p.width)
    if isinstance(p, FewChannelsProblem):
        weight: tuple[int, ...] = (p.filters, p.kernel_rows, p.window)
    else:
        image = (*image, p.channels)
        sizes = {"O": p.filters, "H": p.kernel[0], "W": p.kernel[1], "I": p.channels}
        weight = tuple(sizes[letter] for letter in p.weight)
    out = (p.images, *p.out_size, p.filters)
    return plain_signature((image, p.dtype), (weight, p.dtype), (out, p.out), p.epilogue_or_cast())


def _pack(p: ConvProblem, parameters: Parameters) -> Parameters:
    """Emit the packing kernel; return the parameters with packed operands in place."""
    packing = PackingKernel(p.dtype)
    (kh, kw), packed = p.kernel, p.few_channels
    image = weight = None
    if packed is not None:
        filled = packed.column_stride // p.stride[1]
        image = packing.image(
            parameters.a, (p.images, p.height, p.width, p.channels),
            (p.images, packed.height, packed.width), filled, p.padding[:2],
        )  # fmt: skip
        weight = packing.elements(
            parameters.b,
            kh * kw * p.channels * p.filters,
            p.filters * packed.kernel_rows * packed.window,
            functools.partial(_window_element, p, packed, filled),
        )
    else:
        if p.packed[0]:
            image = packing.rows(parameters.a, p.images * p.height * p.width, p.channels)
        if p.packed[1] and p.weight_k_major and p.weight != "OHWI":
            pitch = pitch_of(p.channels, p.dtype)
            weight = packing.elements(
                parameters.b,
                kh * kw * p.channels * p.filters,
                p.filters * kh * kw * pitch,
                functools.partial(_transposed_element, p, pitch),
            )
        elif p.packed[1]:
            taps, row = (p.filters, p.channels) if p.weight_k_major else (p.channels, p.filters)
            weight = packing.rows(parameters.b, kh * kw * taps, row)
    packing.emit()
    return dataclasses.replace(
        parameters,
        a=parameters.a if image is None else packing.pointer(image),
        b=parameters.b if weight is None else packing.pointer(weight),
    )


def _window_element(
    p: ConvProblem, packed: FewChannelsProblem, filled: int, item: Expr
) -> tuple[Expr, Expr]:
    """Map an element of the packed weight to its source index, and whether it is not padding."""
    kh, kw = p.kernel
    e, rest = remainder(item, packed.window), quotient(item, packed.window)
    r, o = remainder(rest, kh), quotient(rest, kh)
    s, c = quotient(e, filled), remainder(e, filled)
    there = tirx.all(s < kw, c < p.channels)
    if p.weight == "OHWI":
        return ((o * kh + r) * kw + s) * p.channels + c, there
    return ((r * kw + s) * p.channels + c) * p.filters + o, there


def _transposed_element(p: ConvProblem, pitch: int, item: Expr) -> tuple[Expr, Expr]:
    """Like :func:`_window_element`, for a weight transposed to K-major with ``pitch`` channels."""
    taps = p.kernel[0] * p.kernel[1]
    c, rest = remainder(item, pitch), quotient(item, pitch)
    tap, o = remainder(rest, taps), quotient(rest, taps)
    return (tap * p.channels + c) * p.filters + o, c < p.channels

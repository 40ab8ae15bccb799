"""Match a sum reduction to an NHWC convolution, also to the packed form for few channels."""

from __future__ import annotations

import dataclasses

from tvm import ir, sym, tirx
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.expressions import (
    AffineIndex,
    ComputeBlock,
    NotThisForm,
    PaddedLoad,
    affine,
    number,
)
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem


def convolution(
    anchor: ComputeBlock, left: PaddedLoad, right: PaddedLoad, dtype: str, out: str
) -> ConvProblem:
    """Match a reduction to a convolution.

    Args:
        anchor: The reduction block.
        left: The load of the image.
        right: The load of the weight.
        dtype: Dtype of image and weight.
        out: Output dtype.

    Returns:
        The problem, without epilogue.

    Raises:
        NotThisForm: When the reduction is no such convolution.
    """
    image, weight = left.load, right.load
    if right.condition is not None:
        raise NotThisForm("a padded weight")
    if len(image.source.shape) != 4 or len(weight.source.shape) != 4 or len(anchor.indices) != 4:
        raise NotThisForm("neither a GEMM nor a 2-D convolution")
    images, height, width, channels = _static_shape(image.source)
    weight_shape = _static_shape(weight.source)
    out_images, out_height, out_width, filters = _static_shape(anchor.buffer)
    n, y, x, f = _output_axes(anchor)
    at_n, at_y, at_x, at_c = [affine(i, anchor) for i in image.indices]
    if not at_n.is_axis(n, out_images) or images != out_images:
        raise NotThisForm("the images of a convolution are not in order")
    down, across = _window(anchor, at_y, y), _window(anchor, at_x, x)
    channel = next(iter(at_c.factors), None)
    if channels > 1 and not (channel in _reduced(anchor) and at_c.is_axis(channel, channels)):
        raise NotThisForm("a grouped convolution")
    wide = {v for v in _reduced(anchor) if anchor.extent(v) != 1}
    if wide - {down.axis, across.axis, channel}:
        raise NotThisForm("a reduction over more than a window and channels")
    at_weight = [affine(i, anchor) for i in weight.indices]
    axes = {
        "O": (f, filters),
        "H": (down.axis, down.extent),
        "W": (across.axis, across.extent),
        "I": (channel, channels),
    }
    layout = _layout(weight_shape, at_weight, axes)
    if min(down.stride, across.stride, down.dilation, across.dilation) < 1:
        raise NotThisForm("a window with a negative stride or dilation")
    if left.condition is not None:
        _check_padding(left.condition, image)
    top, bottom = down.padding(height, out_height)
    start, end = across.padding(width, out_width)
    return ConvProblem(
        images, height, width, channels, filters, (down.extent, across.extent),
        (down.stride, across.stride), (top, start, bottom, end), (down.dilation, across.dilation),
        dtype, out, layout,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Window:
    """One dimension of a window: input index = stride * output + dilation * axis + offset.

    Attributes:
        axis: The reduction axis; None for a window of one pixel.
        extent: Its extent.
        stride: Stride.
        dilation: Dilation.
        offset: Offset: the padding before, negative.
    """

    axis: tirx.Var | None
    extent: int
    stride: int
    dilation: int
    offset: int

    def padding(self, size: int, out_size: int) -> tuple[int, int]:
        """Return the padding before and after an input of ``size`` pixels."""
        reach = (out_size - 1) * self.stride + (self.extent - 1) * self.dilation + 1
        return -self.offset, reach - size + self.offset


def _window(anchor: ComputeBlock, index: AffineIndex, output: tirx.Var) -> _Window:
    """Match an input index to a window over the output axis ``output``."""
    reduced = _reduced(anchor)
    inner = [v for v in index.factors if v in reduced]
    if len(inner) > 1 or any(v not in reduced and not v.same_as(output) for v in index.factors):
        raise NotThisForm("an input index is not stride * output + dilation * window")
    stride = index.factors.get(output, 1)
    if not inner:
        return _Window(None, 1, stride, 1, index.offset)
    [axis] = inner
    return _Window(axis, anchor.extent(axis), stride, index.factors[axis], index.offset)


def _layout(
    shape: tuple[int, ...],
    indices: list[AffineIndex],
    axes: dict[str, tuple[tirx.Var | None, int]],
) -> str:
    """Return the layout of the weight, from the axis and the extent of each letter."""
    for name in ("OHWI", "HWIO"):
        if all(
            size == axes[letter][1] and index.is_axis(*axes[letter])
            for letter, size, index in zip(name, shape, indices, strict=True)
        ):
            return name
    raise NotThisForm("the weight is neither OHWI nor HWIO")


def few_channels_convolution(
    anchor: ComputeBlock, left: PaddedLoad, right: PaddedLoad, dtype: str, out: str
) -> FewChannelsProblem:
    """Match the packed form for few channels; arguments and errors as in :func:`convolution`."""
    image, weight = left.load, right.load
    reduced = [v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r]
    parallel = anchor.parallel
    if left.condition is not None or right.condition is not None:
        raise NotThisForm("a padded operand")
    ranks = len(image.indices), len(weight.indices), len(anchor.indices)
    if ranks != (3, 3, 4) or (len(parallel), len(reduced)) != (4, 2):
        raise NotThisForm("not the packed form of few channels")
    images, height, width = _static_shape(image.source)
    filters, lines, window = _static_shape(weight.source)
    out_images, out_height, out_width, _ = _static_shape(anchor.buffer)
    n, y, x, o = parallel
    g, e = reduced

    def of(axes: dict[tirx.Var, int]) -> AffineIndex:
        return AffineIndex({v: s for v, s in axes.items() if anchor.extent(v) != 1}, 0)

    at_image = [affine(i, anchor) for i in image.indices]
    at_weight = [affine(i, anchor) for i in weight.indices]
    step, pixel = at_image[1].factors.get(y, 1), at_image[2].factors.get(x, 1)
    wanted_image = [of({n: 1}), of({y: step, g: 1}), of({x: pixel, e: 1})]
    wanted_weight = [of({v: 1}) for v in (o, g, e)]
    if at_image != wanted_image or at_weight != wanted_weight or out_images != images:
        raise NotThisForm("not the packed form of few channels")
    return FewChannelsProblem(
        images, height, width, filters, (out_height, out_width), lines, window, step, pixel,
        dtype, out,
    )  # fmt: skip


def _reduced(anchor: ComputeBlock) -> set[tirx.Var]:
    """Return the reduction axes."""
    return {v for v, r in zip(anchor.axes, anchor.reduce, strict=True) if r}


def _output_axes(anchor: ComputeBlock) -> list[tirx.Var]:
    """Return the four axes that index the output, in order."""
    parallel = anchor.parallel
    if len(parallel) != 4 or not all(
        isinstance(i, tirx.Var) and i.same_as(v)
        for i, v in zip(anchor.indices, parallel, strict=True)
    ):
        raise NotThisForm("the reduction does not write its output in order")
    return parallel


def _static_shape(buffer: tirx.Buffer) -> tuple[int, ...]:
    """Return the extents of a buffer."""
    shape = [number(e) for e in buffer.shape]
    if not all(isinstance(e, int) for e in shape):
        raise NotThisForm("a convolution of dynamic shape")
    return tuple(shape)


def _check_padding(condition: Expr, load: ir.TensorLoad) -> None:
    """Raise unless ``condition`` only tests the bounds of the tensor."""
    analyzer = sym.Analyzer()
    bounds = []
    for index, extent in zip(load.indices, load.source.shape, strict=True):
        bounds += [index, extent - 1 - index]
    todo = [condition]
    while todo:
        one = todo.pop()
        if isinstance(one, tirx.And):
            todo += [one.a, one.b]
            continue
        if isinstance(one, tirx.LE):
            least = one.b - one.a
        elif isinstance(one, tirx.LT):
            least = one.b - one.a - 1
        elif isinstance(one, tirx.GE):
            least = one.a - one.b
        elif isinstance(one, tirx.GT):
            least = one.a - one.b - 1
        else:
            raise NotThisForm("padding by an unknown condition")
        if not any(analyzer.can_prove_equal(least, bound) for bound in bounds):
            raise NotThisForm("padding by an unknown condition")

"""ONNX's RoiAlign (mean of samples) as one TensorIR function.

Each region is divided into bins; a bin's value is the mean of samples on a regular grid, each
interpolated between four pixels. Their number may depend on the region. Every read is within the
image, whatever the regions hold; a region whose image does not exist, which is not finite, or which
would take more than ``MOST_SAMPLES`` samples a bin, gives NaN.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.scheduled import OPAQUE, SCHEDULED_ATTR

#: Most samples of a bin along each axis.
MOST_SAMPLES = 4096


@dataclasses.dataclass(frozen=True)
class RoiAlign:
    """Sizes and attributes of the operator.

    Attributes:
        image: Shape of the images, (batch, channels, height, width).
        regions: Number of regions.
        bins: Bins of a region along height and width.
        samples: Samples of a bin along each axis; 0 for one a pixel.
        scale: Pixels per unit of a region's coordinates.
        half_pixel: Whether pixels have their centres at half coordinates; otherwise a region is at
            least one pixel wide and high.
    """

    image: tuple[int, int, int, int]
    regions: int
    bins: tuple[int, int]
    samples: int
    scale: float
    half_pixel: bool


def roi_align(spec: RoiAlign) -> tirx.PrimFunc:
    """Return the function.

    Its parameters are the images, float32 ``spec.image``; the regions, float32 (regions, 4), each
    (x, y, x, y) of its corners; their images, int64 (regions,); and the output, float32
    (regions, channels, *bins).
    """
    channels = spec.image[1]
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, SCHEDULED_ATTR: True})
        image = build.arg("image", build.buffer(spec.image, "float32"))
        regions = build.arg("regions", build.buffer((spec.regions, 4), "float32"))
        indices = build.arg("indices", build.buffer((spec.regions,), "int64"))
        out_shape = (spec.regions, channels, *spec.bins)
        out = build.arg("out", build.buffer(out_shape, "float32"))
        with build.parallel(spec.regions * channels) as pair:
            region, channel = pair // channels, pair % channels
            _Region(spec, image, regions, indices, out, region, channel).emit()
    return builder.get()


def _float(value: float) -> Expr:
    return tirx.const(np.float32(value), "float32")


def _local(value: Expr, dtype: str = "float32") -> tirx.Buffer:
    """Return a buffer of one element that holds ``value``."""
    buffer = build.alloc_buffer((1,), dtype, scope="local")
    build.buffer_store(buffer, value, [0])
    return buffer


class _Region:
    """The bins of one channel of one region."""

    def __init__(
        self, spec: RoiAlign, image: tirx.Buffer, regions: tirx.Buffer, indices: tirx.Buffer,
        out: tirx.Buffer, region: Expr, channel: Expr,
    ) -> None:  # fmt: skip
        self._spec, self._image, self._out = spec, image, out
        self._regions, self._indices = regions, indices
        self._region, self._channel = region, channel

    def emit(self) -> None:
        # Along height (1) and width (0): start, size of a bin, samples of a bin.
        starts, bins, counts, fit = [], [], [], tirx.const(True)
        for axis in (1, 0):
            start, size = self._extent(axis)
            bin_ = _local(size[0] / _float(self._spec.bins[1 - axis]))
            starts.append(start)
            bins.append(bin_)
            count = _float(self._spec.samples) if self._spec.samples else tirx.ceil(bin_[0])
            # False for NaN.
            fit = tirx.all(fit, count <= _float(MOST_SAMPLES))
            counts.append(_local(tirx.max(count, _float(0))))
        batch = self._spec.image[0]
        index = _local(self._indices[self._region], "int64")
        fit = tirx.all(fit, index[0] >= 0, index[0] < batch, self._is_finite())
        with build.grid(*self._spec.bins) as (row, column):
            place = [self._region, self._channel, row, column]
            with build.If(fit):
                with build.Then():
                    value = self._bin(starts, bins, counts, index, (row, column))
                    build.buffer_store(self._out, value, place)
                with build.Else():
                    build.buffer_store(self._out, _float(np.nan), place)

    def _is_finite(self) -> Expr:
        corners = [self._regions[self._region, n] for n in range(4)]
        return tirx.all(*(tirx.abs(corner) < _float(1e30) for corner in corners))

    def _extent(self, axis: int) -> tuple[tirx.Buffer, tirx.Buffer]:
        """Return the start and the length of the region in pixels."""
        offset = _float(0.5 if self._spec.half_pixel else 0)
        low, high = (
            self._regions[self._region, n] * _float(self._spec.scale) - offset
            for n in (axis, axis + 2)
        )
        length = high - low
        return _local(low), _local(length if self._spec.half_pixel else tirx.max(length, _float(1)))

    def _bin(
        self, starts: list[tirx.Buffer], bins: list[tirx.Buffer], counts: list[tirx.Buffer],
        index: tirx.Buffer, bin_: tuple[Expr, Expr],
    ) -> Expr:  # fmt: skip
        """Return the mean of the samples of a bin."""
        total = _local(_float(0))
        loops = [counts[n][0].astype("int32") for n in (0, 1)]
        with build.serial(loops[0]) as i, build.serial(loops[1]) as j:
            at = [
                _local(
                    starts[n][0]
                    + bin_[n].astype("float32") * bins[n][0]
                    + (step.astype("float32") + _float(0.5)) * bins[n][0] / counts[n][0]
                )
                for n, step in enumerate((i, j))
            ]
            height, width = self._spec.image[2:]
            inside = tirx.all(
                *(
                    tirx.all(at[n][0] >= _float(-1), at[n][0] <= _float(size))
                    for n, size in enumerate((height, width))
                )
            )
            with build.If(inside), build.Then():
                build.buffer_store(total, total[0] + self._sample(index, at), [0])
        return total[0] / tirx.max(counts[0][0] * counts[1][0], _float(1))

    def _sample(self, index: tirx.Buffer, at: list[tirx.Buffer]) -> Expr:
        """Return the value between four pixels."""
        low, high, weight = [], [], []
        for place, size in zip(at, self._spec.image[2:], strict=True):
            inside = tirx.min(tirx.max(place[0], _float(0)), _float(size - 1))
            first = _local(tirx.floor(inside).astype("int32"), "int32")
            low.append(first[0])
            high.append(tirx.min(first[0] + 1, tirx.const(size - 1, "int32")))
            weight.append(_local(inside - tirx.floor(inside))[0])

        def pixel(row: Expr, column: Expr) -> Expr:
            return self._image[index[0].astype("int32"), self._channel, row, column]

        def between(row: Expr) -> Expr:
            left, right = pixel(row, low[1]), pixel(row, high[1])
            return left * (_float(1) - weight[1]) + right * weight[1]

        return between(low[0]) * (_float(1) - weight[0]) + between(high[0]) * weight[0]

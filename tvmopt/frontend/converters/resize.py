"""Converter of Resize where TVM's has another result.

That is so with antialiasing, where the scale is not the quotient of the sizes, for some of the axes
only, with weights that leave the outside out, and in coordinates that TVM does not know.

Each axis is resized alone: the mode nearest takes values, the others multiply by a matrix. Its rows
hold the weights of the source values of one output value. Source: the reference implementation of
the operator in the ONNX standard, https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    dtype_of,
    is_constant,
    optional,
    static_shape,
    text,
)

_SUPPORT = {"linear": 1.0, "cubic": 2.0}
_KNOWN_TO_TVM = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_ROUNDED: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda place: math.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: math.floor(place + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def resize(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Return the resized input; None where TVM's converter is right."""
    mode = text(attributes, "mode", "nearest")
    coordinate = text(attributes, "coordinate_transformation_mode", "half_pixel")
    given = [value for value in inputs[2:4] if value is not None]
    if coordinate == "tf_crop_and_resize" or not all(map(is_constant, given)):
        return None
    x = inputs[0]
    shape = static_shape(x)
    axes = [axis % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    scales, sizes = _sizes(inputs, attributes, shape, axes)
    antialias, outside = (bool(attributes.get(k, 0)) for k in ("antialias", "exclude_outside"))
    exact = all(
        math.isclose(scale * shape[axis], size)
        for axis, scale, size in zip(axes, scales, sizes, strict=True)
    )
    whole = len(axes) == len(shape) and axes == sorted(axes)
    if whole and exact and coordinate in _KNOWN_TO_TVM and not antialias and not outside:
        return None
    support = _SUPPORT.get(mode, 0.0)
    kernel = _cubic(float(attributes.get("cubic_coeff_a", -0.75))) if mode == "cubic" else _linear
    rounded = _ROUNDED[text(attributes, "nearest_mode", "round_prefer_floor")]
    result = x if mode == "nearest" else relax.op.astype(x, "float32")
    for axis, scale, size in zip(axes, scales, sizes, strict=True):
        if scale == 1.0 and size == shape[axis]:
            continue
        if mode == "nearest":
            places = [_place(row, scale, shape[axis], size, coordinate) for row in range(size)]
            at = np.clip([rounded(place) for place in places], 0, shape[axis] - 1)
            result = builder.emit(relax.op.take(result, relax.const(at.astype("int64")), axis))
            continue
        matrix = weights(shape[axis], size, scale, coordinate, kernel, support, outside, antialias)
        moved = relax.op.permute_dims(result, _swap(len(shape), axis))
        product = builder.emit(relax.op.matmul(moved, relax.const(matrix.T.copy())))
        result = builder.emit(relax.op.permute_dims(product, _swap(len(shape), axis)))
    return builder.normalize(relax.op.astype(result, dtype_of(x)))


def weights(
    source: int,
    target: int,
    scale: float,
    coordinate: str,
    kernel: Callable[[np.ndarray], np.ndarray],
    support: float,
    exclude_outside: bool,
    antialias: bool,
) -> np.ndarray:
    """Return the matrix (target, source) that resizes one axis.

    Args:
        source: Extent of the axis.
        target: Extent that it gets.
        scale: Target over source, as the model says.
        coordinate: The attribute ``coordinate_transformation_mode``.
        kernel: Weight of a source value by its distance.
        support: Distance at which the weight is 0.
        exclude_outside: Whether values outside of the axis have no weight; else the values at the
            ends stand for them.
        antialias: Whether the kernel grows when the axis shrinks.
    """
    matrix = np.zeros((target, source))
    shrink = min(scale, 1.0) if antialias else 1.0
    for row in range(target):
        place = _place(row, scale, source, target, coordinate)
        reach = support / shrink
        first, last = math.floor(place - reach) + 1, math.ceil(place + reach)
        at = np.arange(first, last + 1)
        weight = kernel((at - place) * shrink)
        inside = (at >= 0) & (at < source)
        if exclude_outside:
            weight = weight * inside
        weight = weight / weight.sum()
        np.add.at(matrix[row], np.clip(at, 0, source - 1), weight)
    return matrix.astype("float32")


def _place(row: int, scale: float, source: int, target: int, coordinate: str) -> float:
    """Return the place in the source of an output value."""
    if coordinate == "asymmetric":
        return row / scale
    if coordinate == "align_corners":
        return row * (source - 1) / (target - 1) if target > 1 else 0.0
    if coordinate == "pytorch_half_pixel" and target == 1:
        return 0.0
    if coordinate == "half_pixel_symmetric":
        adjusted = target / (scale * source)
        centre = source / 2
        return centre * (1 - adjusted) + (row + 0.5) / scale - 0.5
    if coordinate in ("half_pixel", "pytorch_half_pixel"):
        return (row + 0.5) / scale - 0.5
    raise ValueError(f"coordinate_transformation_mode {coordinate!r} is not supported")


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.clip(1 - np.abs(distance), 0, None)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    def kernel(distance: np.ndarray) -> np.ndarray:
        d = np.abs(distance)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        far = a * (d**3 - 5 * d**2 + 8 * d - 4)
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel


def _sizes(
    inputs: Inputs, attributes: Attributes, shape: list[int], axes: list[int]
) -> tuple[list[float], list[int]]:
    """Return scale and size of each resized axis."""
    scales = optional(inputs, 2)
    if scales is not None and constant(scales, "scales").size:
        found = [float(v) for v in constant(scales, "scales")]
        return found, [math.floor(shape[a] * s) for a, s in zip(axes, found, strict=True)]
    wanted = [int(v) for v in constant(optional(inputs, 3), "sizes")]
    policy = text(attributes, "keep_aspect_ratio_policy", "stretch")
    found = [size / shape[axis] for axis, size in zip(axes, wanted, strict=True)]
    if policy != "stretch":
        scale = min(found) if policy == "not_larger" else max(found)
        return [scale] * len(axes), [round(scale * shape[axis]) for axis in axes]
    return found, wanted


def _swap(rank: int, axis: int) -> list[int]:
    """Return the permutation that swaps an axis with the last one."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order

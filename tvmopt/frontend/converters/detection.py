"""Converters of operators of detectors: NonMaxSuppression, RoiAlign."""

from __future__ import annotations

from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    dtype_of,
    first_rows,
    is_constant,
    opset,
    static_shape,
    text,
)
from tvmopt.kernels.non_max_suppression import LIMITS, non_max_suppression
from tvmopt.kernels.roi_align import RoiAlign, roi_align

_HALF_PIXEL_OPSET = 16  # from which on RoiAlign's regions refer to pixels with half coordinates


def non_maximum_suppression(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the indices of the kept boxes, (kept, 3); their number is known at run time only."""
    boxes, scores, *given = [*inputs, *[None] * 5][:5]
    images, classes, count = static_shape(scores)
    limits = {
        name: relax.op.reshape(value, [1])
        for name, value in zip(LIMITS, given, strict=True)
        if value is not None
    }
    kept = count
    if given[0] is not None and is_constant(given[0]):
        kept = min(count, max(0, int(constant(given[0], "max_output_boxes_per_class").flat[0])))
    function = non_max_suppression(
        images,
        classes,
        count,
        max(1, kept),
        centred=bool(attributes.get("center_point_box", 0)),
        limits=tuple(limits),
    )
    arguments = [boxes, scores, *(builder.emit(value) for value in limits.values())]
    types = [
        relax.TensorType((images * classes * max(1, kept), 3), "int64"),
        relax.TensorType((1,), "int64"),
    ]
    symbol = builder.add_func(function, "non_max_suppression")
    made = builder.emit(relax.op.call_tir(symbol, arguments, types))
    indices = builder.emit(relax.TupleGetItem(made, 0))
    total = builder.emit(relax.TupleGetItem(made, 1))
    return first_rows(builder, indices, total)


def align_regions(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the bins of regions of images, (regions, channels, *bins)."""
    image, regions, indices = inputs
    mode = text(attributes, "mode", "avg")
    if mode != "avg":
        raise ValueError(f"mode must be avg, but is {mode}")
    if {dtype_of(image), dtype_of(regions)} != {"float32"}:
        raise ValueError("images and regions must be float32")
    default = "half_pixel" if opset(attributes) >= _HALF_PIXEL_OPSET else "output_half_pixel"
    batch, channels, height, width = static_shape(image)
    spec = RoiAlign(
        image=(batch, channels, height, width),
        regions=static_shape(regions)[0],
        bins=(int(attributes.get("output_height", 1)), int(attributes.get("output_width", 1))),
        samples=max(0, int(attributes.get("sampling_ratio", 0))),
        scale=float(attributes.get("spatial_scale", 1.0)),
        half_pixel=text(attributes, "coordinate_transformation_mode", default) == "half_pixel",
    )
    symbol = builder.add_func(roi_align(spec), "roi_align")
    arguments = [image, regions, builder.emit(relax.op.astype(indices, "int64"))]
    kind = relax.TensorType((spec.regions, channels, *spec.bins), "float32")
    return builder.emit(relax.op.call_tir(symbol, arguments, kind))

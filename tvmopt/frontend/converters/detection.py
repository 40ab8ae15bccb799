"""Converter of NonMaxSuppression."""

from __future__ import annotations

from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    first_rows,
    is_constant,
    static_shape,
)
from tvmopt.kernels.non_max_suppression import LIMITS, non_max_suppression


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

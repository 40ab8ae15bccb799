"""Converters of operators over windows of an image."""

from __future__ import annotations

import itertools
import math

from tvm import relax, te, tirx

from tvmopt.frontend.converters.node import Attributes, Inputs, constant, dtype_of, static_shape


def col2im(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Add up blocks of columns into an image: (N, C * block, windows) -> (N, C, *image).

    Each value of the image is the sum over the places of a block that reach it.
    """
    x = inputs[0]
    image = [int(v) for v in constant(inputs[1], "image_shape")]
    block = [int(v) for v in constant(inputs[2], "block_shape")]
    rank = len(image)
    dilations = list(attributes.get("dilations", [1] * rank))
    pads = list(attributes.get("pads", [0] * 2 * rank))
    strides = list(attributes.get("strides", [1] * rank))
    batch, columns, _ = static_shape(x)
    channels = columns // math.prod(block)
    windows = [
        (image[d] + pads[d] + pads[rank + d] - (dilations[d] * (block[d] - 1) + 1)) // strides[d]
        + 1
        for d in range(rank)
    ]
    zero = tirx.const(0, dtype_of(x))

    def added(data: te.Tensor) -> te.Tensor:
        def value(n: tirx.Var, c: tirx.Var, *at: tirx.Var) -> tirx.PrimExpr:
            total = zero
            for number, place in enumerate(itertools.product(*map(range, block))):
                inside, window = tirx.const(True, "bool"), tirx.const(0, "int32")
                for d in range(rank):
                    start = at[d] + pads[d] - place[d] * dilations[d]
                    index = tirx.floordiv(start, strides[d])
                    inside = tirx.all(
                        inside, tirx.floormod(start, strides[d]) == 0, index >= 0,
                        index < windows[d],
                    )  # fmt: skip
                    window = window * windows[d] + index
                column = c * math.prod(block) + number
                total = total + tirx.if_then_else(inside, data[n, column, window], zero)
            return total

        return te.compute((batch, channels, *image), value, name="col2im")

    return builder.emit_te(added, x)

"""Converter of ConvTranspose with ``output_shape``, which TVM's ignores."""

from __future__ import annotations

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ConvTranspose

from tvmopt.frontend.converters.node import Attributes, Inputs, static_shape


def conv_transpose(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Return the transposed convolution with the padding that gives ``output_shape``."""
    if "output_shape" not in attributes:
        return None
    shape, kernel = static_shape(inputs[0])[2:], static_shape(inputs[1])[2:]
    rank = len(shape)
    strides = list(attributes.get("strides", [1] * rank))
    dilations = list(attributes.get("dilations", [1] * rank))
    more = list(attributes.get("output_padding", [0] * rank))
    wanted = list(attributes["output_shape"])[-rank:]
    automatic = attributes.get("auto_pad", "NOTSET")
    upper = automatic in ("SAME_UPPER", b"SAME_UPPER")
    begins, ends = [], []
    for d in range(rank):
        full = strides[d] * (shape[d] - 1) + (kernel[d] - 1) * dilations[d] + 1 + more[d]
        total = full - wanted[d]
        if total < 0:  # the output is larger than what the input reaches
            more[d] -= total
            total = 0
        small, large = total // 2, total - total // 2
        begins.append(small if upper else large)
        ends.append(large if upper else small)
    left = {k: v for k, v in attributes.items() if k not in ("auto_pad", "output_shape")}
    left |= {"pads": begins + ends, "output_padding": more}
    return ConvTranspose._impl_v1(builder, inputs, left, None)

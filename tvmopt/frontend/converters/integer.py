"""Converter of ConvInteger, which TVM's importer lacks."""

from __future__ import annotations

from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs, optional, static_shape, text


def conv_integer(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the int32 convolution of ``x - x_zero_point`` and ``w - w_zero_point``.

    Args:
        builder: Block builder to emit into.
        inputs: x (N, C, H, W), w (O, I, H, W), and optionally their zero points; that of w may have
            one value for each output channel.
        attributes: Attributes of the ONNX node.

    Raises:
        ValueError: When it is no convolution in two dimensions.
    """
    x, w, x_zero, w_zero = inputs[0], inputs[1], optional(inputs, 2), optional(inputs, 3)
    shape, kernel = static_shape(x), static_shape(w)
    rank = len(shape) - 2
    if rank != 2:
        raise ValueError(f"ConvInteger in {rank} dimensions is not supported")
    x = relax.op.astype(x, "int32")
    if x_zero is not None:
        x = relax.op.subtract(x, relax.op.reshape(relax.op.astype(x_zero, "int32"), (1,)))
    w = relax.op.astype(w, "int32")
    if w_zero is not None:
        zero = builder.emit(relax.op.astype(w_zero, "int32"))
        w = relax.op.subtract(w, relax.op.reshape(zero, (-1, 1, 1, 1)))
    strides = list(attributes.get("strides", [1] * rank))
    dilations = list(attributes.get("dilations", [1] * rank))
    pads = list(attributes.get("pads", [0] * 2 * rank))
    automatic = text(attributes, "auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        for d in range(rank):
            reach = (kernel[2 + d] - 1) * dilations[d] + 1
            outputs = -(-shape[2 + d] // strides[d])
            total = max(0, (outputs - 1) * strides[d] + reach - shape[2 + d])
            small, large = total // 2, total - total // 2
            begin, end = (small, large) if automatic == "SAME_UPPER" else (large, small)
            pads[d], pads[rank + d] = begin, end
    result = relax.op.nn.conv2d(
        builder.emit(x), builder.emit(w), strides=strides, padding=pads, dilation=dilations,
        groups=int(attributes.get("group", 1)), out_dtype="int32",
    )  # fmt: skip
    return builder.normalize(result)

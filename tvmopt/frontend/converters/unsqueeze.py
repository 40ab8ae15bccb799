"""Converter of Unsqueeze whose axes are one number: PyTorch's exporter writes a scalar."""

from __future__ import annotations

from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs, optional
from tvmopt.transform.precision.anchor_call import constant_data


def unsqueeze(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Insert one axis if the axes are a scalar, which ONNX Runtime accepts; None for a list."""
    data, axes = optional(inputs, 0), optional(inputs, 1)
    place = None if axes is None else constant_data(axes)
    if data is None or place is None or place.numpy().ndim:
        return None
    if not isinstance(data.ty, relax.TensorType):
        return None
    return builder.emit(relax.op.expand_dims(data, int(place.numpy())))

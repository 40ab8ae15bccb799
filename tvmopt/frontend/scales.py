"""Validate the scales of Resize and Upsample: negative ones make ONNX Runtime abort."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.errors import ModelError
from tvmopt.frontend.external import graphs
from tvmopt.printable import shown

_AT = {"Resize": (1, 2), "Upsample": (1,)}  # input positions of the scales, over all opsets


def check_scales(model: onnx.ModelProto) -> None:
    """Raise :class:`ModelError` when constant scales are not positive and finite."""
    for graph in graphs(model.graph):
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            for at in _AT.get(node.op_type, ()):
                tensor = constants.get(node.input[at]) if at < len(node.input) else None
                # Input 1 of newer opsets is the region of interest, for a mode without scales.
                if tensor is None or (at == 1 and len(node.input) > 2):
                    continue
                _check(node.name, tensor)


def _check(name: str, tensor: onnx.TensorProto) -> None:
    try:
        scales = numpy_helper.to_array(tensor)
    except Exception:  # wrong size or type: ONNX Runtime reports it
        return
    if scales.dtype.kind == "f" and not (np.isfinite(scales) & (scales > 0)).all():
        raise ModelError(
            f"scales of Resize must be positive numbers, but node {name!r} has "
            f"{shown(scales.tolist())}; correct the model and export it again"
        )

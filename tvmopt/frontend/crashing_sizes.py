"""Refuse sizes that crash ONNX Runtime: scales of Resize, block sizes of DepthToSpace."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from tvmopt.errors import ModelError
from tvmopt.frontend.external import graphs
from tvmopt.printable import shown

_AT = {"Resize": (1, 2), "Upsample": (1,)}  # input positions of the scales, over all opsets
_BLOCKS = ("DepthToSpace", "SpaceToDepth")
# ONNX Runtime squares the block size in 64 bits and divides by the result.
_MAX_BLOCK = 2**15
# ONNX Runtime multiplies sizes by the scales in 64 bits.
_MAX_SCALE = 2**31


def check_sizes(model: onnx.ModelProto) -> None:
    """Check constant scales and block sizes.

    Raises:
        ModelError: When a scale of Resize is not positive, or above 2**31 (ONNX Runtime aborts), or
            a block size is not 1 to 2**15 (ONNX Runtime divides by zero).
    """
    for graph in graphs(model.graph):
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type in _BLOCKS:
                _check_block(node)
            for at in _AT.get(node.op_type, ()):
                tensor = constants.get(node.input[at]) if at < len(node.input) else None
                # Input 1 of newer opsets is the region of interest, for a mode without scales.
                if tensor is None or (at == 1 and len(node.input) > 2):
                    continue
                _check_scales(node.name, tensor)


def _check_scales(name: str, tensor: onnx.TensorProto) -> None:
    try:
        scales = numpy_helper.to_array(tensor)
    except Exception:  # wrong size or type: ONNX Runtime reports it
        return
    if scales.dtype.kind == "f" and not ((scales > 0) & (scales <= _MAX_SCALE)).all():
        raise ModelError(
            f"scales of Resize must be positive and at most {_MAX_SCALE}, but node {name!r} has "
            f"{shown(scales.tolist())}; correct the model and export it again"
        )


def _check_block(node: onnx.NodeProto) -> None:
    size = next((a.i for a in node.attribute if a.name == "blocksize"), 1)
    if not 1 <= size <= _MAX_BLOCK:
        raise ModelError(
            f"blocksize of {node.op_type} must be 1 to {_MAX_BLOCK}, but node {node.name!r} has "
            f"{size}; correct the model and export it again"
        )

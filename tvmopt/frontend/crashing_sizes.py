"""Refuse sizes that crash ONNX Runtime: scales of Resize, block sizes of DepthToSpace, pads."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.errors import ModelError
from tvmopt.frontend.external import graphs
from tvmopt.frontend.library_errors import ONNX_ERRORS
from tvmopt.printable import shown

_AT = {"Resize": (1, 2), "Upsample": (1,)}  # input positions of the scales, over all opsets
_BLOCKS = ("DepthToSpace", "SpaceToDepth")
# ONNX Runtime squares the block size in 64 bits and divides by the result.
_MAX_BLOCK = 2**15
# ONNX Runtime multiplies sizes by the scales in 64 bits.
_MAX_SCALE = 2**31


def check_sizes(model: onnx.ModelProto) -> None:
    """Check constant scales, block sizes, and pads of values whose shape the model declares.

    Raises:
        ModelError: When a scale of Resize is not positive, or above 2**31 (ONNX Runtime aborts), a
            block size is not 1 to 2**15 (ONNX Runtime divides by zero), or Pad removes more than
            there is (what slices the result aborts).
    """
    for graph in graphs(model.graph):
        constants = {tensor.name: tensor for tensor in graph.initializer}
        values = {value.name: value for value in (*graph.input, *graph.value_info)}
        for node in graph.node:
            if node.op_type in _BLOCKS:
                _check_block(node)
            if node.op_type == "Pad" and node.input and node.input[0] in values:
                _check_pads(node, values[node.input[0]], constants)
            for at in _AT.get(node.op_type, ()):
                tensor = constants.get(node.input[at]) if at < len(node.input) else None
                # Input 1 of newer opsets is the region of interest, for a mode without scales.
                if tensor is None or (at == 1 and len(node.input) > 2):
                    continue
                _check_scales(node.name, tensor)


def _check_scales(name: str, tensor: onnx.TensorProto) -> None:
    scales = _array(tensor)
    if (
        scales is not None
        and scales.dtype.kind == "f"
        and not ((scales > 0) & (scales <= _MAX_SCALE)).all()
    ):
        raise ModelError(
            f"scales of Resize must be positive and at most {_MAX_SCALE}, but node {name!r} has "
            f"{shown(scales.tolist())}; correct the model and export it again"
        )


def _check_pads(
    node: onnx.NodeProto, value: onnx.ValueInfoProto, constants: dict[str, onnx.TensorProto]
) -> None:
    dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]  # 0 for a dynamic one
    pads = next((list(a.ints) for a in node.attribute if a.name == "pads"), [])
    tensor = constants.get(node.input[1]) if len(node.input) > 1 else None
    array = None if tensor is None else _array(tensor)
    if array is not None:
        pads = array.reshape(-1).tolist()
    if len(pads) != 2 * len(dims):  # of some axes only
        return
    for axis, (size, before, after) in enumerate(zip(dims, pads, pads[len(dims) :], strict=False)):
        if size > 0 and size + before + after < 0:
            raise ModelError(
                f"Pad must not remove more than there is, but node {node.name!r} has pads "
                f"{before} and {after} for axis {axis} of {size} values; correct the model and "
                "export it again"
            )


def _array(tensor: onnx.TensorProto) -> np.ndarray | None:
    """Return a constant's values; None for a wrong size or type: ONNX Runtime reports it."""
    try:
        return numpy_helper.to_array(tensor)
    except ONNX_ERRORS:
        return None


def _check_block(node: onnx.NodeProto) -> None:
    size = next((a.i for a in node.attribute if a.name == "blocksize"), 1)
    if not 1 <= size <= _MAX_BLOCK:
        raise ModelError(
            f"blocksize of {node.op_type} must be 1 to {_MAX_BLOCK}, but node {node.name!r} has "
            f"{size}; correct the model and export it again"
        )

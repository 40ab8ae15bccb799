"""The same recurrent layers without a bias, in which ONNX Runtime keeps NaN.

before -> after: LSTM(x, W, R, B) -> LSTM([x, 1], [W, B], R). ONNX Runtime turns NaN into numbers in
LSTM and GRU with a bias, but not without one.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_X, _W, _BIAS = 0, 1, 3  # places in the inputs
_CELLS = ("LSTM", "GRU")


def without_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose LSTM and GRU have no bias; their weights and biases must be constant.

    The bias of a GRU's reset gate on the hidden side is added before the reset, also where it
    belongs behind it: numbers change then, but not the places of NaN.
    """
    out = onnx.ModelProto()
    out.CopyFrom(model)
    constants = {tensor.name: tensor for tensor in out.graph.initializer}
    nodes = []
    for number, node in enumerate(out.graph.node):
        if node.op_type in _CELLS and len(node.input) > _BIAS and node.input[_BIAS]:
            w, bias = (numpy_helper.to_array(constants[node.input[at]]) for at in (_W, _BIAS))
            column = bias.reshape(len(bias), 2, -1).sum(axis=1)[..., None]
            names = {key: f"without bias/{number}/{key}" for key in ("x", "w", "pads", "one")}
            arrays = {
                "w": np.concatenate([w, column], axis=2), "pads": np.array([0, 0, 0, 0, 0, 1]),
                "one": np.ones((), w.dtype),
            }  # fmt: skip
            out.graph.initializer.extend(
                numpy_helper.from_array(array, names[key]) for key, array in arrays.items()
            )
            given = [node.input[_X], names["pads"], names["one"]]
            nodes.append(helper.make_node("Pad", given, [names["x"]]))
            node.input[_X], node.input[_W], node.input[_BIAS] = names["x"], names["w"], ""
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del out.graph.node[:]
    out.graph.node.extend(copies)
    return out

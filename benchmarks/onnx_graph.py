"""Builder of ONNX graphs for the generated models.

Every node has one output. The output has the name of the node by default, so that code reads like a
chain of assignments and reports show the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 8  # the oldest version with opset 17, for older runtimes
OPSET = 17  # the first with LayerNormalization


@dataclass
class GraphBuilder:
    """Collect nodes and initializers; `model` returns a checked `ModelProto`."""

    name: str
    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _constants: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Add an initializer and return its name; a repeated name must have the same array."""
        known = self._constants.setdefault(name, np.asarray(value))
        if known is not value and not np.array_equal(known, value):
            raise ValueError(
                f"A constant's name must be unique in {self.name!r}, but {name!r} was given two "
                "different arrays; prefix it with its layer's name."
            )
        return name

    def node(
        self, op: str, inputs: Sequence[str], name: str, output: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output and return the output's name, by default `name`."""
        output = output or name
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=name, **attributes))
        return output

    def model(
        self,
        inputs: dict[str, Sequence[int | str]],
        outputs: dict[str, Sequence[int | str]],
    ) -> onnx.ModelProto:
        """Return the float32 model; a string as dimension makes it dynamic (`dim_param`).

        Raises:
            onnx.checker.ValidationError: The graph is not valid ONNX.
            onnx.shape_inference.InferenceError: The shapes are inconsistent.
        """

        def value_infos(shapes: dict[str, Sequence[int | str]]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in shapes.items()
            ]

        initializers = [
            numpy_helper.from_array(np.ascontiguousarray(value), name)
            for name, value in self._constants.items()
        ]
        graph = helper.make_graph(
            self._nodes, self.name, value_infos(inputs), value_infos(outputs), initializers
        )
        model = helper.make_model(
            graph,
            producer_name="tvmopt",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        onnx.checker.check_model(model, full_check=True)
        return model

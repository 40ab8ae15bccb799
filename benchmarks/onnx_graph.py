"""A small writer for ONNX graphs, for the models that are built here.

Every node has one output, which bears the node's name unless it is given another, so a graph reads
like a chain of assignments and the names survive into reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 8  # the oldest one that carries opset 17, so that older runtimes still read the file
OPSET = 17  # the first with LayerNormalization


@dataclass
class GraphBuilder:
    """Collects nodes and constants; `model` turns them into a checked `ModelProto`."""

    name: str
    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _constants: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Adds an initializer and returns its name; the same name twice must be the same array."""
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
        """Adds a node with one output called `output`, or like the node, and returns that name."""
        output = output or name
        self._nodes.append(helper.make_node(op, list(inputs), [output], name=name, **attributes))
        return output

    def model(
        self,
        inputs: dict[str, Sequence[int | str]],
        outputs: dict[str, Sequence[int | str]],
    ) -> onnx.ModelProto:
        """Returns the float32 model; a dimension given as a string is dynamic (a `dim_param`).

        Raises:
            onnx.checker.ValidationError: the graph is not valid ONNX.
            onnx.shape_inference.InferenceError: its shapes contradict each other.
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

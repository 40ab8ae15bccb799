"""Recurrent layers of the benchmarks, with random weights; only :func:`model` needs onnx.

The input has as many features as there are hidden units, and 100 steps.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

STEPS = 100
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of a table.

    Attributes:
        name: Name in the table.
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        hidden: Hidden units.
        batch: Batch size.
        late_reset: Whether a GRU resets after the product, as PyTorch does.
    """

    name: str
    cell: str
    hidden: int
    batch: int = 1
    late_reset: bool = False

    @property
    def rows(self) -> int:
        """Rows of a weight: gates times hidden units."""
        return GATES[self.cell] * self.hidden

    def weights(self) -> dict[str, np.ndarray]:
        """Return ONNX's W, R (1, rows, hidden) and B (1, 2 rows)."""
        rng = np.random.default_rng(0)
        shapes = {
            "w": (self.rows, self.hidden),
            "r": (self.rows, self.hidden),
            "b": (2 * self.rows,),
        }
        return {
            name: (rng.standard_normal((1, *shape)) / shape[-1] ** 0.5).astype("float32")
            for name, shape in shapes.items()
        }

    def input(self) -> np.ndarray:
        """Return an input (steps, batch, hidden)."""
        shape = (STEPS, self.batch, self.hidden)
        return np.random.default_rng(1).standard_normal(shape).astype("float32")


def layers(hidden: tuple[int, ...], batch: int = 1) -> list[Layer]:
    """Return an LSTM, both GRUs and an RNN of each size."""
    kinds = (("LSTM", "LSTM", False), ("GRU, late reset", "GRU", True), ("GRU", "GRU", False))
    return [
        Layer(name, cell, size, batch, late)
        for name, cell, late in (*kinds, ("RNN", "RNN", False))
        for size in hidden
    ]


def model(layer: Layer) -> onnx.ModelProto:
    """Return a model of one layer, from ``x`` to ``y``."""
    from onnx import TensorProto, helper, numpy_helper

    attributes: dict[str, Any] = {"hidden_size": layer.hidden}
    if layer.cell == "GRU":
        attributes["linear_before_reset"] = int(layer.late_reset)
    node = helper.make_node(layer.cell, ["x", "w", "r", "b"], ["y"], name="layer", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (STEPS, layer.batch, layer.hidden))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, name) for name, a in layer.weights().items()]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)

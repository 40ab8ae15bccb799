"""Models of one recurrent layer with drawn attributes, for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
_NAMES = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RecurrentModel:
    """A model of one recurrent layer.

    Attributes:
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        steps: Length of the sequence.
        batch: Batch size.
        features: Features of the input.
        hidden: Hidden units.
        operands: Optional inputs that are there, among B, lengths, h, c and P.
        attributes: Attributes of the node.
    """

    cell: str
    steps: int
    batch: int
    features: int
    hidden: int
    operands: tuple[str, ...]
    attributes: dict[str, Any]

    def build(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """Return the model and its inputs; weights and lengths are constants."""
        rng = np.random.default_rng(0)
        both = self.attributes.get("direction") == "bidirectional"
        directions, rows = 1 + both, _GATES[self.cell] * self.hidden

        def drawn(*shape: int) -> np.ndarray:
            return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype("float32")

        state = (directions, self.batch, self.hidden)
        arrays = {
            "X": drawn(self.steps, self.batch, self.features),
            "W": drawn(directions, rows, self.features),
            "R": drawn(directions, rows, self.hidden),
            "B": drawn(directions, 2 * rows),
            "lengths": rng.integers(1, self.steps + 1, self.batch).astype("int32"),
            "h": drawn(*state),
            "c": drawn(*state),
            "P": drawn(directions, 3 * self.hidden),
        }
        order = ["X", "W", "R", "B", "lengths", "h", *(["c", "P"] if self.cell == "LSTM" else [])]
        present = {"X", "W", "R", *self.operands}
        outputs = ["Y", "Y_h", *(["Y_c"] if self.cell == "LSTM" else [])]
        node = helper.make_node(
            self.cell,
            [name if name in present else "" for name in order],
            outputs,
            name="layer",
            hidden_size=self.hidden,
            **self.attributes,
        )
        given = {name: arrays[name] for name in ("X", "h", "c") if name in present & set(order)}
        constants = [n for n in order if n in present and n not in given]
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "recurrent",
            [helper.make_tensor_value_info(n, kind, a.shape) for n, a in given.items()],
            [helper.make_tensor_value_info(n, kind, None) for n in outputs],
            [numpy_helper.from_array(arrays[n], n) for n in constants],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
        return model, given


@st.composite
def recurrent_models(draw: st.DrawFn) -> RecurrentModel:
    """Draw a layer; hidden sizes lie around whole vectors, batches around whole blocks of rows."""
    cell = draw(st.sampled_from(sorted(_GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    attributes: dict[str, Any] = {"direction": direction}
    if draw(st.booleans()):
        count = _ACTIVATIONS[cell] * (1 + (direction == "bidirectional"))
        names = draw(st.lists(st.sampled_from(_NAMES), min_size=count, max_size=count))
        attributes["activations"] = names
        if draw(st.booleans()):
            attributes["activation_alpha"] = [0.5] * count
            attributes["activation_beta"] = [0.25] * count
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.5, 1.5]))
    if cell == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    optional = ["B", "lengths", "h"]
    if cell == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
        optional += ["c", "P"]
    return RecurrentModel(
        cell,
        draw(st.sampled_from([1, 2, 5, 9, 29])),
        draw(st.sampled_from([1, 2, 3, 4, 5, 9])),
        draw(st.sampled_from([1, 3, 8])),
        draw(st.sampled_from([1, 4, 7, 15, 16, 17, 33])),
        tuple(draw(st.lists(st.sampled_from(optional), unique=True))),
        attributes,
    )

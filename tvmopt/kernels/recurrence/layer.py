"""Recurrence: the serial part of an LSTM, a GRU or an RNN, after the input's matmul.

Source: the ONNX operators `LSTM, GRU and RNN <https://onnx.ai/onnx/operators/>`_.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Self

#: Gates of each cell, in ONNX's order of the rows of W and R.
GATES = {"LSTM": ("i", "o", "f", "c"), "GRU": ("z", "r", "h"), "RNN": ("h",)}
#: Names of all operands, in order; only ``gates`` and ``weight`` are always there.
OPERANDS = (
    "gates", "weight", "weight_scale", "bias", "peepholes", "lengths", "initial_h", "initial_c",
)  # fmt: skip
# Activations whose results are within 0 and 1, and within -1 and 1.
_SHARES = ("HardSigmoid", "Sigmoid")
_BOUNDED = (*_SHARES, "Softsign", "Tanh")


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation function of a gate.

    Attributes:
        name: Its name in ONNX, such as ``"Sigmoid"``.
        alpha: First parameter; 0 where the function has none.
        beta: Second parameter; 0 where the function has none.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """One recurrent layer.

    Attributes:
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        steps: Length of the sequence.
        batch: Batch size.
        hidden: Hidden units.
        reverse: For each direction, whether it starts at the last step.
        activations: For each direction, the activations in ONNX's order.
        operands: Names of the operands, a subset of ``OPERANDS`` in their order.
        clip: Bound of the absolute value of a gate before its activation; 0 for none.
        linear_before_reset: Whether a GRU multiplies the reset gate after the product.
        input_forget: Whether the forget gate of an LSTM is one minus the input gate.
        weight_dtype: dtype of the packed weight; all else is float32. An ``"int8"`` weight has the
            operand ``weight_scale``, the value of one step for each gate and unit.
    """

    cell: str
    steps: int
    batch: int
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    operands: tuple[str, ...]
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    weight_dtype: str = "float32"

    @property
    def gates(self) -> int:
        """Number of gates."""
        return len(GATES[self.cell])

    @property
    def directions(self) -> int:
        """Number of directions."""
        return len(self.reverse)

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Gates that are computed together; a later phase reads the results of the earlier one."""
        if self.cell == "GRU" and not self.linear_before_reset:
            return ((0, 1), (2,))
        return (tuple(range(self.gates)),)

    @property
    def bounded(self) -> bool:
        """Whether no state is larger than 1 or the largest initial state, whatever the input is."""
        # A GRU's new state is a weighted mean, if its update gate is a share.
        factors = {"LSTM": (0, 2), "GRU": (0, 1), "RNN": (0,)}[self.cell]
        return all(
            activations[n].name in (_SHARES if self.cell == "GRU" and n == 0 else _BOUNDED)
            for activations in self.activations
            for n in factors
        )

    @property
    def outputs(self) -> int:
        """Number of outputs: Y, Y_h, and Y_c of an LSTM."""
        return 3 if self.cell == "LSTM" else 2

    def to_json(self) -> str:
        """Return a text that :meth:`from_json` reads."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the result of :meth:`to_json`."""
        values: dict[str, Any] = json.loads(text)
        activations = tuple(
            tuple(Activation(**each) for each in direction) for direction in values["activations"]
        )
        tuples = {name: tuple(values[name]) for name in ("reverse", "operands")}
        return cls(**(values | tuples | {"activations": activations}))

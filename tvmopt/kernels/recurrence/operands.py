"""Parameters of a recurrent layer's kernel, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tvmopt.kernels.recurrence.layer import Recurrence

Shape: TypeAlias = tuple[int, ...]
#: Name, shape and dtype of a parameter.
Parameter: TypeAlias = tuple[str, Shape, str]


def state_shape(recurrence: Recurrence, units: int) -> Shape:
    """Return the shape of a state: (directions, batch, units)."""
    return (recurrence.directions, recurrence.batch, units)


def kernel_inputs(recurrence: Recurrence, units: int, weights: Sequence[Shape]) -> list[Parameter]:
    """Return the inputs of a kernel.

    Args:
        recurrence: The layer.
        units: Hidden units, rounded up as the kernel needs them.
        weights: Shape of the recurrent weight of each phase.
    """
    r, state = recurrence, state_shape(recurrence, units)
    shapes: dict[str, tuple[Shape, str]] = {
        "gates": ((r.steps, r.batch, r.directions, r.gates, units), "float32"),
        "weight_scale": ((r.directions, r.gates, units), "float32"),
        "bias": ((r.directions, units), "float32"),
        "peepholes": ((r.directions, 3, units), "float32"),
        "lengths": ((r.batch,), "int32"),
        "initial_h": (state, "float32"),
        "initial_c": (state, "float32"),
    }
    operands = [(name, *shapes[name]) for name in r.operands if name != "weight"]
    packed = [(f"weight{n}", shape, r.weight_dtype) for n, shape in enumerate(weights)]
    return [operands[0], *packed, *operands[1:]]


def kernel_outputs(recurrence: Recurrence, units: int) -> list[Parameter]:
    """Return the outputs of a layer: Y, Y_h and, for an LSTM, Y_c."""
    r, state = recurrence, state_shape(recurrence, units)
    outputs = [("y", (r.steps, r.directions, r.batch, units), "float32"), ("y_h", state, "float32")]
    if r.cell == "LSTM":
        outputs.append(("y_c", state, "float32"))
    return outputs

"""Find out whether a model computes the same for inputs that are padded with zeros.

A model with a mask does, along the length of its sequences, if the mask is padded, too. Then one
compiled length serves all shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvmopt.compare import FLOAT_TOLERANCE, deviation
from tvmopt.errors import in_one_line
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.reference import Reference
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.runtime.sizes import Axis, zero_padded


def why_padding_is_seen(
    small: Reference,
    large: Reference,
    large_inputs: Sequence[TensorSpec],
    batches: Sequence[Mapping[str, np.ndarray]],
    output_axes: Sequence[Axis],
) -> str:
    """Return why padding to a larger size changes the outputs; empty if it does not.

    Args:
        small: The model in a size.
        large: The model in a larger one.
        large_inputs: Inputs of ``large``.
        batches: Inputs of ``small``.
        output_axes: Axes of the outputs that have the dimension; they are cut to the smaller size.
    """
    for batch in batches:
        padded = {spec.name: zero_padded(batch[spec.name], spec.shape) for spec in large_inputs}
        try:
            expected, found = small(batch), large(padded)
        except onnxruntime_errors() as error:
            return f"cannot be padded: ONNX Runtime refuses zeros there: {in_one_line(error)}"
        for number, (output, wanted) in enumerate(zip(found, expected, strict=True)):
            cut = [slice(None)] * output.ndim
            for position, axis in output_axes:
                if position == number:
                    cut[axis] = slice(wanted.shape[axis])
            kept = output[tuple(cut)]
            if kept.shape != wanted.shape:
                return "cannot be padded: an output has another size that depends on it"
            if not deviation(kept, wanted) <= FLOAT_TOLERANCE.limit:
                return "cannot be padded: the model's outputs depend on the padding"
    return ""

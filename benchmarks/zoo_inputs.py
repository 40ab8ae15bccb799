"""Draw random inputs for models of the zoo."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.zoo_entries import Entry


def random_inputs(entry: Entry, model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw an array for every input of `model`: N(0, 1), or uniform in the entry's ranges.

    Raises:
        ValueError: The entry lacks the shape of a dynamic input or the range of an integer input.
    """
    from tvmopt.frontend import parse_input_shapes

    shapes, random = parse_input_shapes(entry.input_shapes), np.random.default_rng(seed)
    ranges = {name: (low, high) for name, low, high in entry.integer_ranges}
    initialized = {tensor.name for tensor in model.graph.initializer}
    arrays = {}
    for value in model.graph.input:
        if value.name in initialized:
            continue
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = shapes.get(value.name, tuple(dim.dim_value for dim in tensor.shape.dim))
        if 0 in shape or (dtype.kind in "iu" and value.name not in ranges):
            raise ValueError(
                f"Inputs of {entry.name} must have a fixed shape and, when integer, a range, but "
                f"{value.name!r} is {dtype} {shape}; complete its entry in zoo_entries.py."
            )
        if value.name in ranges:
            low, high = ranges[value.name]
            arrays[value.name] = random.integers(low, high, shape, endpoint=True).astype(dtype)
        else:
            arrays[value.name] = random.standard_normal(shape).astype(dtype)
    return arrays

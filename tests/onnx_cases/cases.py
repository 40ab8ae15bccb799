"""The node tests of the onnx package as models with data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_NUMERIC = "fiubc"


@dataclasses.dataclass(frozen=True)
class Case:
    """One model with inputs.

    Attributes:
        name: Its name in the onnx package.
        model: The model.
        inputs: An array for each input, by name.
        rtol: Relative tolerance of the case.
        atol: Absolute tolerance of the case.
    """

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    rtol: float
    atol: float

    def with_constants(self) -> Case | None:
        """Return the case with its integer and boolean inputs as constants; None without any.

        Exported models have axes, sizes and counts as constants; the tests pass them as inputs.
        """
        floats = any(v.dtype.kind not in "iub" for v in self.inputs.values())
        first = "" if floats else next(iter(self.inputs), "")  # the data is of integers
        fixed = {
            k: v
            for k, v in self.inputs.items()
            if k != first and (v.dtype.kind in "iub" or k in ("scales", "roi"))
        }
        left = {k: v for k, v in self.inputs.items() if k not in fixed}
        if not fixed:
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        inputs = [value for value in model.graph.input if value.name not in fixed]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        tensors = [numpy_helper.from_array(array, name) for name, array in fixed.items()]
        model.graph.initializer.extend(tensors)
        return dataclasses.replace(self, model=model, inputs=left)


def node_cases() -> Iterator[Case]:
    """Yield the cases whose inputs and outputs are numeric tensors."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        inputs, outputs = ([_array(value) for value in side] for side in case.data_sets[0])
        if any(array is None for array in (*inputs, *outputs)):
            continue
        names = [value.name for value in case.model.graph.input]
        # The caller of a subgraph's values passes none for an optional input that is left out.
        given: dict[str, Any] = dict(zip(names, inputs, strict=True))
        yield Case(case.name, case.model, given, case.rtol, case.atol)


def _array(value: Any) -> np.ndarray | None:
    """Return a numeric array; None for what is none."""
    if isinstance(value, onnx.TensorProto):
        if value.data_type == onnx.TensorProto.STRING:
            return None
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic | int | float):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in _NUMERIC else None

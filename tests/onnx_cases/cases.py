"""The node tests and the small models of the onnx package, with their data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
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
        outputs: The outputs that the package gives.
        rtol: Relative tolerance of the case.
        atol: Absolute tolerance of the case.
    """

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: list[np.ndarray]
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
        made = _case(case.name, case.model, case.data_sets[0], case.rtol, case.atol)
        if made is not None:
            yield made


def small_models() -> Iterator[Case]:
    """Yield the small models that the package brings as files, whose values are numeric tensors."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for folder in sorted((data / kind).iterdir()):
            model = onnx.load_model(str(folder / "model.onnx"))
            sides = [_values(folder / "test_data_set_0", side, model) for side in _SIDES]
            made = _case(f"{kind}/{folder.name}", model, sides, rtol=1e-3, atol=1e-7)
            if made is not None:
                yield made


_SIDES = ("input", "output")


def _values(folder: Path, side: str, model: onnx.ModelProto) -> list[onnx.TensorProto | None]:
    """Return the tensors of one side of a model; None for what is no tensor."""
    declared = {"input": model.graph.input, "output": model.graph.output}[side]
    found: list[onnx.TensorProto | None] = []
    for number, path in enumerate(sorted(folder.glob(f"{side}_*.pb"), key=_number)):
        is_tensor = declared[number].type.HasField("tensor_type")
        tensor = onnx.TensorProto.FromString(path.read_bytes()) if is_tensor else None
        found.append(tensor)
    return found


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _case(
    name: str, model: onnx.ModelProto, data: Sequence[Sequence[Any]], rtol: float, atol: float
) -> Case | None:
    """Return the case; None when a value is no numeric tensor."""
    inputs, outputs = ([_array(value) for value in side] for side in data)
    results = [array for array in outputs if array is not None]
    if len(results) < len(outputs) or any(array is None for array in inputs):
        return None
    # Older models list their weights as inputs, too.
    weights = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights]
    # The caller of a subgraph's values passes none for an optional input that is left out.
    given: dict[str, Any] = dict(zip(names, inputs, strict=True))
    return Case(name, model, given, results, rtol, atol)


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

"""Add nodes to the graph that skl2onnx builds, each with a unique name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

# Versions of the operators whose inputs or attributes differ from the first version.
_VERSIONS = {"Softmax": 13, "ArgMax": 13, "ReduceSumSquare": 13, "Clip": 13, "Pow": 15}
_VERSION = 13
_TYPES = {"float32": "FloatTensorType", "float64": "DoubleTensorType"}
#: Options of skl2onnx that a converter of a classifier takes.
CLASSIFIER_OPTIONS = {
    "zipmap": [True, False, "columns"], "nocl": [True, False],
    "output_class_labels": [False, True], "raw_scores": [True, False],
}  # fmt: skip


def fractions_of(operator: Any) -> Any:
    """Return skl2onnx's type of fractions: of float64 if an input is, else of float32."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    wide = any(isinstance(one.type, DoubleTensorType) for one in operator.inputs)
    return DoubleTensorType if wide else FloatTensorType


class Nodes:
    """The graph of a converter.

    Args:
        scope: skl2onnx's scope, which knows the names that are taken.
        container: skl2onnx's container of nodes.
    """

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope, self._container = scope, container

    def add(
        self, kind: str, inputs: Sequence[str], output: str = "", domain: str = "",
        version: int = 0, **attributes: Any,
    ) -> str:  # fmt: skip
        """Add a node; return the name of its output.

        Args:
            kind: The operator.
            inputs: Names of its inputs.
            output: Name of its output; empty for a new one.
            domain: Domain of the operator.
            version: Version of the operator; 0 for the usual one of ONNX's own domain.
            attributes: Its attributes.
        """
        output = output or str(self._scope.get_unique_variable_name(kind.lower()))
        self._container.add_node(
            kind,
            list(inputs),
            [output],
            name=self._scope.get_unique_operator_name(kind),
            op_domain=domain,
            op_version=version or _VERSIONS.get(kind, _VERSION),
            **attributes,
        )
        return output

    def constant(self, value: Any) -> str:
        """Add a constant, of the dtype of ``value``; return its name."""
        array = np.asarray(value)
        name = str(self._scope.get_unique_variable_name("constant"))
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._container.add_initializer(name, dtype, list(array.shape), array.ravel().tolist())
        return name

    def cast(self, value: str, dtype: Any, output: str = "") -> str:
        """Return ``value`` in another dtype; ``output`` as of :meth:`add`."""
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", [value], output, to=to)

    def write_fractions(self, operator: Any, value: str, output: int = 0) -> None:
        """Write ``value`` to an output of an operator, in its dtype: float32 or float64."""
        wanted = operator.outputs[output]
        is_wide = type(wanted.type).__name__ == "DoubleTensorType"
        self.cast(value, np.float64 if is_wide else np.float32, wanted.full_name)

    def joined(self, operator: Any, dtype: Any) -> str:
        """Return the inputs of an operator as one matrix of ``dtype``."""
        found = []
        for one in operator.inputs:
            is_same = type(one.type).__name__ == _TYPES.get(np.dtype(dtype).name)
            found.append(one.full_name if is_same else self.cast(one.full_name, dtype))
        return str(found[0]) if len(found) == 1 else self.add("Concat", found, axis=1)

"""An exported graph in ONNX Runtime: its outputs, and its answers to tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.prepare import session_options
from tvmopt.runtime.interface import SourceInterface


class ExportedSession:
    """The exported graph in ONNX Runtime.

    Args:
        model: The exported model.

    Attributes:
        dtypes: dtype of each input, by name.

    Raises:
        ModelError: When ONNX Runtime does not load it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime

        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(),
                session_options(model),
                providers=["CPUExecutionProvider"],
            )
        except onnxruntime_errors() as error:
            raise ModelError(
                f"ONNX Runtime must load the exported model, but says: {in_one_line(error)}"
                "; report the model as a bug"
            ) from error
        self.dtypes = input_dtypes(model)
        self._names = [output.name for output in model.graph.output]

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Raises:
            ModelError: When ONNX Runtime fails.
        """
        try:
            found = self._session.run(self._names, dict(inputs))
        except onnxruntime_errors() as error:
            raise ModelError(
                f"ONNX Runtime must run the exported model, but says: {in_one_line(error)}"
                "; report the model as a bug"
            ) from error
        return dict(zip(self._names, found, strict=True))

    def answer(self, interface: SourceInterface, table: Any) -> np.ndarray:
        """Return the answer for a table, whatever values it holds."""
        inputs = interface.inputs(table, self.dtypes, strict=False)
        return np.asarray(interface.result(self.outputs(inputs)))


def input_dtypes(model: onnx.ModelProto) -> dict[str, str]:
    """Return the dtype of each input of a graph, by name."""
    return {
        value.name: str(
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        )
        for value in model.graph.input
    }

"""A compiled model as MLflow's ``python_function``: what its generic tools call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from tvmopt.errors import ConfigError
from tvmopt.printable import one_line
from tvmopt.runtime import CompiledModel, Outputs
from tvmopt.runtime.interface import SourceInterface
from tvmopt.runtime.metadata import TensorSpec

#: Option of the pyfunc flavor: refuse inputs and outputs that hold NaN or an infinity.
REQUIRE_FINITE = "require_finite"


class RefusedInputError(ConfigError, MlflowException):
    """The inputs of a call do not fit; MLflow's scoring server answers 400 with the message."""

    def __init__(self, message: str) -> None:
        MlflowException.__init__(self, one_line(message), error_code=INVALID_PARAMETER_VALUE)


class CompiledPyFunc:
    """Python model that :func:`mlflow.pyfunc.load_model` wraps.

    Args:
        model: The compiled model.
        require_finite: Whether inputs and outputs with NaN or infinities are refused.
    """

    def __init__(self, model: CompiledModel, require_finite: bool = False) -> None:
        self._model = model
        self._require_finite = require_finite
        self._single = len(model.metadata.outputs) == 1

    def predict(self, data: Any) -> Any:
        """Return the outputs in ONNX order; the array itself for a single output.

        A model whose source is no ONNX model takes and returns what its source does.

        Raises:
            RefusedInputError: When an input does not fit. With ``require_finite``, also when an
                input or an output holds NaN or an infinity.
        """
        try:
            if self._model.metadata.interface is not None:
                return self._predict_as_source(data, self._model.metadata.interface)
            return self._predict(_plain(data, self._model.metadata.inputs))
        except ConfigError as error:
            raise RefusedInputError(str(error)) from error

    def _predict_as_source(self, data: Any, interface: SourceInterface) -> Any:
        """Return the answer that the source of the model gives."""
        inputs = interface.inputs(data, {s.name: s.dtype for s in self._model.metadata.inputs})
        if self._require_finite:
            for name, array in inputs.items():
                check_finite(f"input {name!r}", array)
        answer = interface.result(dict(self._model(inputs).items()), getattr(data, "index", None))
        if self._require_finite:
            check_finite("the answer", np.asarray(answer))
        return answer

    def _predict(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray | Outputs:
        if self._require_finite:
            named = inputs.items() if isinstance(inputs, Mapping) else [("", inputs)]
            for name, array in named:
                check_finite(f"input {name!r}" if name else "the input", np.asarray(array))
        outputs = self._model(inputs)
        if self._require_finite:
            for name, array in outputs.items():
                check_finite(f"output {name!r}", array)
        return outputs[0] if self._single else outputs

    def get_raw_model(self) -> CompiledModel:
        """Return the model without MLflow's wrapper."""
        return self._model


# MLflow asks inspect for the signature at every call, which would make it anew each time.
CompiledPyFunc.predict.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    CompiledPyFunc.predict
)


def check_finite(what: str, array: np.ndarray) -> None:
    """Raise :class:`ConfigError` if ``array`` holds NaN or an infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise ConfigError(
            f"{what} must be finite (option {REQUIRE_FINITE}), but {bad} of {array.size} values "
            "are NaN or infinite"
        )


def _plain(data: Any, inputs: Sequence[TensorSpec]) -> np.ndarray | Mapping[str, np.ndarray]:
    """Return arrays of NumPy arrays, mappings, lists or a pandas table.

    A column of a table is an input of its name; the columns of other names are the features of a
    model with one input of two axes.
    """
    if isinstance(data, np.ndarray | Mapping):
        return data
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas, from MLflow's tools
        features = len(inputs) == 1 and len(inputs[0].shape) == 2
        if features and inputs[0].name not in data.columns:
            return np.asarray(data.to_numpy())
        if len(data.columns) == 1:
            return np.asarray(data.iloc[:, 0].tolist())
        return {str(name): np.asarray(data[name].tolist()) for name in data.columns}
    return np.asarray(data)

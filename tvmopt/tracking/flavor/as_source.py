"""Signature and input example of a compiled model whose source MLflow knows by another flavor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlflow.models import ModelSignature

from tvmopt.runtime.interface import SourceInterface

_ROWS = 5
_TYPES = {"double": "float64", "float": "float32", "long": "int64", "integer": "int32",
          "boolean": "bool"}  # fmt: skip


def signature_of(interface: SourceInterface) -> ModelSignature | None:
    """Return the signature of the source; None if it had none."""
    if interface.signature is None:
        return None
    return ModelSignature.from_dict(interface.signature)


def example_of(interface: SourceInterface, inputs: Mapping[str, np.ndarray]) -> Any:
    """Return some rows as the source takes them: a pandas table, or an array.

    Args:
        interface: The interface.
        inputs: Rows as ONNX inputs, with strings where they have categories.
    """
    if not interface.columns:
        first = next(iter(inputs.values()))[:_ROWS]
        return first if len(inputs) == 1 else {k: v[:_ROWS] for k, v in inputs.items()}
    import pandas

    types = {}
    if interface.signature is not None:
        entries = json.loads(interface.signature["inputs"])
        types = {entry["name"]: _TYPES.get(entry["type"], "object") for entry in entries}
    found = {}
    for column in interface.columns:
        values = inputs[column.input][:_ROWS, column.position]
        if column.text:
            values = values.astype(object)
        dtype = np.dtype(types.get(column.name, values.dtype))
        if dtype.kind != "f" and values.dtype.kind == "f":
            values = np.nan_to_num(values)
        found[column.name] = values.astype(dtype)
    return pandas.DataFrame(found)

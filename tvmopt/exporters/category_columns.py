"""Nodes for skl2onnx that compute the features of histogram gradient boosting with categories."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tvmopt.errors import ModelError
from tvmopt.exporters.category_splits import CategoryTable, Features
from tvmopt.exporters.sklearn_nodes import Nodes

_ML_OPSET = 3


class CategoryColumns:
    """Adds the nodes of one operator of skl2onnx.

    Args:
        scope: Scope of skl2onnx.
        operator: The operator; its inputs are one matrix, or one column each.
        container: Container of skl2onnx.
        dtype: dtype of the features, ``"float32"`` or ``"float64"``.
    """

    def __init__(self, scope: Any, operator: Any, container: Any, dtype: str) -> None:
        self._operator, self._nodes = operator, Nodes(scope, container)
        self._dtype = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def features(self, features: Features) -> str:
        """Return the name of the matrix (rows, features) that the trees compare."""
        parts = [
            self._nodes.add("Cast", [self._column(at)], to=self._dtype) for at in features.numbers
        ]
        parts += [self._looked_up(table) for table in features.tables]
        return parts[0] if len(parts) == 1 else self._nodes.add("Concat", parts, axis=1)

    def _looked_up(self, table: CategoryTable) -> str:
        """Return the columns of a table at the category of each row."""
        column, kind = self._column(table.feature), self._kind(table.feature)
        keys: dict[str, Any]
        if kind == "StringTensorType":
            keys = {"keys_strings": [str(one) for one in table.categories]}
        elif kind == "Int64TensorType":
            keys = {"keys_int64s": [int(one) for one in table.categories]}
        else:
            column = self._nodes.add(
                "Cast", [column], to=helper.np_dtype_to_tensor_dtype(np.dtype("f4"))
            )
            keys = {"keys_floats": [float(one) for one in table.categories]}
            if any(float(np.float32(one)) != one for one in keys["keys_floats"]):
                raise ModelError(
                    "categories of histogram boosting must be texts, or numbers that float32 "
                    "holds, to be exported, but some are not"
                    "; encode them before the model"
                )
        code = self._nodes.add(
            "LabelEncoder",
            [column],
            domain="ai.onnx.ml",
            version=_ML_OPSET,
            default_int64=-1,
            values_int64s=list(range(len(table.categories))),
            **keys,
        )
        row = self._nodes.add("Add", [code, self._nodes.constant(np.array([1], np.int64))])
        flat = self._nodes.add("Reshape", [row, self._nodes.constant(np.array([-1], np.int64))])
        found = self._nodes.add("Gather", [self._nodes.constant(table.columns), flat], axis=0)
        return self._nodes.add("Cast", [found], to=self._dtype)

    def _column(self, at: int) -> str:
        """Return one column of the model's inputs, (rows, 1)."""
        inputs = self._operator.inputs
        if len(inputs) > 1:
            return str(inputs[at].full_name)
        place = self._nodes.constant(np.array([at], np.int64))
        return self._nodes.add("Gather", [inputs[0].full_name, place], axis=1)

    def _kind(self, at: int) -> str:
        inputs = self._operator.inputs
        return type(inputs[at if len(inputs) > 1 else 0].type).__name__

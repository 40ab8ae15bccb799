"""Converters for skl2onnx of XGBoost and LightGBM estimators inside models of scikit-learn.

They are the graphs that the flavors ``xgboost`` and ``lightgbm`` get, with other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from tvmopt.exporters.lightgbm import lightgbm_graph
from tvmopt.exporters.sklearn_nodes import CLASSIFIER_OPTIONS, Nodes, fractions_of
from tvmopt.exporters.xgboost import estimator_graph

_TYPES = {"Int64TensorType": TensorProto.INT64, "FloatTensorType": TensorProto.FLOAT,
          "DoubleTensorType": TensorProto.DOUBLE}  # fmt: skip
_INPUT = "columns"


def register_boosted(libraries: Sequence[str]) -> None:
    """Make skl2onnx use the converters of this file, for ``"xgboost"`` and ``"lightgbm"``."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    kinds: list[tuple[Any, bool, Any]] = []
    if "xgboost" in libraries:
        import xgboost

        kinds += [(xgboost.XGBClassifier, True, _convert_xgboost),
                  (xgboost.XGBRFClassifier, True, _convert_xgboost),
                  (xgboost.XGBRegressor, False, _convert_xgboost),
                  (xgboost.XGBRFRegressor, False, _convert_xgboost)]  # fmt: skip
    if "lightgbm" in libraries:
        import lightgbm

        kinds += [(lightgbm.LGBMClassifier, True, _convert_lightgbm),
                  (lightgbm.LGBMRegressor, False, _convert_lightgbm)]  # fmt: skip
    for kind, is_classifier, convert in kinds:
        update_registered_converter(
            kind,
            f"Tvmopt{kind.__name__}",
            calculate_linear_classifier_output_shapes if is_classifier else _shape_of_values,
            convert,
            options=CLASSIFIER_OPTIONS if is_classifier else None,
            overwrite=True,
        )


def _shape_of_values(operator: Any) -> None:
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = fractions_of(operator)([rows, None])


def _convert_xgboost(scope: Any, operator: Any, container: Any) -> None:
    model = operator.raw_operator
    graph = estimator_graph(model, _INPUT, int(model.n_features_in_))
    _inline(graph, Nodes(scope, container).joined(operator, "float32"), scope, operator, container)


def _convert_lightgbm(scope: Any, operator: Any, container: Any) -> None:
    model = operator.raw_operator
    is_float32 = type(operator.inputs[0].type).__name__ == "FloatTensorType"
    dtype = "float32" if is_float32 else "float64"
    graph = lightgbm_graph(model.booster_, _INPUT, int(model.n_features_in_), dtype)
    _inline(graph, Nodes(scope, container).joined(operator, dtype), scope, operator, container)


def _inline(model: onnx.ModelProto, given: str, scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes of ``model``, which takes ``given``, in place of ``operator``."""
    names = {model.graph.input[0].name: given}
    for output, wanted in zip(model.graph.output, operator.outputs, strict=True):
        inner = scope.get_unique_variable_name("boosted")
        names[output.name] = inner
        container.add_node(
            "Cast", [inner], [wanted.full_name], to=_TYPES[type(wanted.type).__name__],
            name=scope.get_unique_operator_name("Cast"),
        )  # fmt: skip
    versions = {entry.domain: entry.version for entry in model.opset_import}

    def renamed(name: str) -> str:
        if name not in names:
            names[name] = scope.get_unique_variable_name("boosted")
        return str(names[name])

    for tensor in model.graph.initializer:
        copied = onnx.TensorProto()
        copied.CopyFrom(tensor)
        copied.name = renamed(tensor.name)
        container.initializers.append(copied)
    for node in model.graph.node:
        container.add_node(
            node.op_type,
            [renamed(name) for name in node.input],
            [renamed(name) for name in node.output],
            op_domain=node.domain,
            op_version=versions.get(node.domain, 1),
            name=scope.get_unique_operator_name(node.op_type),
            **{one.name: helper.get_attribute_value(one) for one in node.attribute},
        )

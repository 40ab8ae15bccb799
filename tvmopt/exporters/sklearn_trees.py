"""Register converters with skl2onnx that are as exact as the trees of scikit-learn.

skl2onnx divides the leaves of a forest by the number of trees before it adds them in float32, which
decides ties in another way than scikit-learn; and it has no multi-class histogram boosting of
float64. These converters add whole leaves first, and compare float64 inputs with float64
thresholds.
"""

from __future__ import annotations

from typing import Any

from tvmopt.exporters.sklearn_boosting import (
    convert_boosting_classifier,
    convert_boosting_regressor,
    convert_histogram_classifier,
    convert_histogram_regressor,
)
from tvmopt.exporters.sklearn_forests import (
    convert_forest,
    convert_forest_regressor,
    convert_isolation_forest,
)
from tvmopt.exporters.sklearn_nodes import CLASSIFIER_OPTIONS, fractions_of


def register_converters() -> None:
    """Make skl2onnx use the converters of this file."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
    from sklearn import ensemble, tree

    kinds = (
        (ensemble.RandomForestClassifier, convert_forest),
        (ensemble.ExtraTreesClassifier, convert_forest),
        (ensemble.RandomForestRegressor, convert_forest_regressor),
        (ensemble.ExtraTreesRegressor, convert_forest_regressor),
        (tree.DecisionTreeRegressor, convert_forest_regressor),
        (tree.ExtraTreeRegressor, convert_forest_regressor),
        (ensemble.GradientBoostingClassifier, convert_boosting_classifier),
        (ensemble.GradientBoostingRegressor, convert_boosting_regressor),
        (ensemble.HistGradientBoostingClassifier, convert_histogram_classifier),
        (ensemble.HistGradientBoostingRegressor, convert_histogram_regressor),
        (ensemble.IsolationForest, convert_isolation_forest),
    )
    shapes = {
        convert_forest_regressor: _shape_of_means,
        convert_boosting_regressor: _shape_of_means,
        convert_histogram_classifier: _shapes_of_histogram,
        convert_histogram_regressor: _shapes_of_histogram,
        convert_isolation_forest: _shapes_of_outliers,
    }
    classifiers = (convert_forest, convert_boosting_classifier, convert_histogram_classifier)
    for kind, convert in kinds:
        is_classifier = convert in classifiers
        update_registered_converter(
            kind,
            f"Tvmopt{kind.__name__}",
            shapes.get(convert, calculate_linear_classifier_output_shapes),
            convert,
            options=CLASSIFIER_OPTIONS if is_classifier else None,
            overwrite=True,
            parser=_outputs_of_outliers if convert is convert_isolation_forest else None,
        )


def _shape_of_means(operator: Any) -> None:
    rows = operator.inputs[0].get_first_dimension()
    width = getattr(operator.raw_operator, "n_outputs_", 1)
    operator.outputs[0].type = fractions_of(operator)([rows, width])


def _outputs_of_outliers(
    scope: Any, model: Any, inputs: Any, custom_parsers: Any = None
) -> list[Any]:
    """Declare the outputs of an outlier detector: labels and scores."""
    from skl2onnx._parse import _get_sklearn_operator_name
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    operator = scope.declare_local_operator(_get_sklearn_operator_name(type(model)), model)
    operator.inputs = inputs
    for name, kind in (("label", Int64TensorType), ("scores", FloatTensorType)):
        operator.outputs.append(scope.declare_local_variable(name, kind()))
    return operator.outputs


def _shapes_of_histogram(operator: Any) -> None:
    """Declare the outputs of histogram boosting, which may take one input for each column."""
    from skl2onnx.common import shape_calculator
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    is_classifier = hasattr(operator.raw_operator, "classes_")
    if len(operator.inputs) == 1 and is_classifier:
        shape_calculator.calculate_linear_classifier_output_shapes(operator)
    elif len(operator.inputs) == 1:
        shape_calculator.calculate_linear_regressor_output_shapes(operator)
    else:
        rows = operator.inputs[0].get_first_dimension()
        width = len(operator.raw_operator.classes_) if is_classifier else 1
        operator.outputs[-1].type = FloatTensorType([rows, width])
        if is_classifier:
            operator.outputs[0].type = Int64TensorType([rows])


def _shapes_of_outliers(operator: Any) -> None:
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type.shape = [rows]
    operator.outputs[1].type.shape = [rows, 1]

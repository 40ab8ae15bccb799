"""Converters for skl2onnx of forests and histogram gradient boosting, as exact as the source.

skl2onnx divides the leaves of a forest by the number of trees before it adds them in float32, which
decides ties in another way than scikit-learn; and it has no multi-class histogram boosting of
float64. These converters add whole leaves first, and compare float64 inputs with float64
thresholds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.errors import ModelError
from tvmopt.exporters.category_columns import CategoryColumns
from tvmopt.exporters.category_splits import THRESHOLD, features_of
from tvmopt.exporters.sklearn_nodes import CLASSIFIER_OPTIONS, Nodes, fractions_of
from tvmopt.exporters.tree_table import Tree, ensemble_attributes

_ML_OPSET = 3


def register_converters() -> None:
    """Make skl2onnx use the converters of this file."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
    from sklearn import ensemble, tree

    kinds = (
        (ensemble.RandomForestClassifier, _convert_forest),
        (ensemble.ExtraTreesClassifier, _convert_forest),
        (ensemble.RandomForestRegressor, _convert_forest_regressor),
        (ensemble.ExtraTreesRegressor, _convert_forest_regressor),
        (tree.DecisionTreeRegressor, _convert_forest_regressor),
        (tree.ExtraTreeRegressor, _convert_forest_regressor),
        (ensemble.GradientBoostingClassifier, _convert_boosting_classifier),
        (ensemble.GradientBoostingRegressor, _convert_boosting_regressor),
        (ensemble.HistGradientBoostingClassifier, _convert_histogram_classifier),
        (ensemble.HistGradientBoostingRegressor, _convert_histogram_regressor),
        (ensemble.IsolationForest, _convert_isolation_forest),
    )
    shapes = {
        _convert_forest_regressor: _shape_of_means,
        _convert_boosting_regressor: _shape_of_means,
        _convert_histogram_classifier: _shapes_of_histogram,
        _convert_histogram_regressor: _shapes_of_histogram,
        _convert_isolation_forest: _shapes_of_outliers,
    }
    classifiers = (_convert_forest, _convert_boosting_classifier, _convert_histogram_classifier)
    for kind, convert in kinds:
        is_classifier = convert in classifiers
        update_registered_converter(
            kind,
            f"Tvmopt{kind.__name__}",
            shapes.get(convert, calculate_linear_classifier_output_shapes),
            convert,
            options=CLASSIFIER_OPTIONS if is_classifier else None,
            overwrite=True,
            parser=_outputs_of_outliers if convert is _convert_isolation_forest else None,
        )


def _tree(estimator: Any, values: np.ndarray, target: int = 0) -> Tree:
    """Return the nodes of a decision tree of scikit-learn with the values of its leaves."""
    tree = estimator.tree_
    return Tree(
        tree.feature,
        tree.threshold,
        tree.children_left,
        tree.children_right,
        np.asarray(tree.missing_go_to_left),
        tree.children_left < 0,
        values,
        target,
    )


def _convert_forest(scope: Any, operator: Any, container: Any) -> None:
    """Add the leaves of a forest, divide by the number of trees, take the largest class."""
    model = operator.raw_operator
    if getattr(model, "n_outputs_", 1) != 1:
        raise ModelError("a forest must have one output to be exported, but has several")
    trees = []
    for estimator in model.estimators_:
        values = estimator.tree_.value[:, 0, :]
        trees.append(_tree(estimator, values / values.sum(axis=1, keepdims=True)))
    # scikit-learn rounds the inputs of these trees to float32 itself.
    source = _cast_input(scope, operator, container, np.float32)
    total = _add_ensemble(scope, container, source, trees, trees[0].values.shape[1], "float32")
    count = Nodes(scope, container).constant(np.float32(len(trees)))
    shares = scope.get_unique_variable_name("shares")
    container.add_node("Div", [total, count], [shares], name=scope.get_unique_operator_name("Div"))
    _finish_classifier(scope, operator, container, shares, shares)


def _shape_of_means(operator: Any) -> None:
    rows = operator.inputs[0].get_first_dimension()
    width = getattr(operator.raw_operator, "n_outputs_", 1)
    operator.outputs[0].type = fractions_of(operator)([rows, width])


def _convert_forest_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the leaves of a forest, or of one tree, and divide by the number of trees."""
    from onnx import TensorProto

    model = operator.raw_operator
    estimators = getattr(model, "estimators_", [model])
    trees = [_tree(one, one.tree_.value[:, :, 0]) for one in estimators]
    source = _cast_input(scope, operator, container, np.float32)
    total = _add_ensemble(scope, container, source, trees, int(model.n_outputs_), "float32")
    count = Nodes(scope, container).constant(np.float32(len(trees)))
    mean, named = scope.get_unique_variable_name("mean"), scope.get_unique_operator_name
    container.add_node("Div", [total, count], [mean], name=named("Div"))
    kind = type(operator.outputs[0].type).__name__
    dtype = TensorProto.DOUBLE if kind == "DoubleTensorType" else TensorProto.FLOAT
    container.add_node(
        "Cast", [mean], [operator.outputs[0].full_name], to=dtype, name=named("Cast")
    )


def _boosted_values(scope: Any, operator: Any, container: Any) -> tuple[str, int]:
    """Add the trees of gradient boosting to its start; return their output and the targets."""
    model = operator.raw_operator
    start = np.zeros((1, model.n_features_in_))
    if type(model.init_).__name__ not in ("DummyClassifier", "DummyRegressor", "str"):
        raise ModelError(
            "gradient boosting must start with init=None or 'zero' to be exported, but starts with "
            f"{type(model.init_).__name__}"
        )
    first = np.asarray(model._raw_predict_init(start), np.float32).reshape(1, -1)
    trees = [
        _tree(estimator, estimator.tree_.value[:, 0, :] * model.learning_rate, target)
        for iteration in model.estimators_
        for target, estimator in enumerate(iteration)
    ]
    source = _cast_input(scope, operator, container, np.float32)
    total = _add_ensemble(scope, container, source, trees, first.shape[1], "float32")
    raw, named = scope.get_unique_variable_name("raw"), scope.get_unique_operator_name
    constant = Nodes(scope, container).constant(first)
    container.add_node("Add", [total, constant], [raw], name=named("Add"))
    return raw, first.shape[1]


def _convert_boosting_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees of all classes; then softmax, or the sigmoid of two classes."""
    raw, targets = _boosted_values(scope, operator, container)
    if operator.raw_operator.loss == "exponential":
        named, double = scope.get_unique_operator_name, scope.get_unique_variable_name("double")
        container.add_node("Add", [raw, raw], [double], name=named("Add"))
        raw = double
    _finish_shares(scope, operator, container, raw, targets)


def _convert_boosting_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees."""
    from onnx import TensorProto

    raw, _ = _boosted_values(scope, operator, container)
    kind = type(operator.outputs[0].type).__name__
    dtype = TensorProto.DOUBLE if kind == "DoubleTensorType" else TensorProto.FLOAT
    named = scope.get_unique_operator_name("Cast")
    container.add_node("Cast", [raw], [operator.outputs[0].full_name], to=dtype, name=named)


def _convert_histogram_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees of all classes; then softmax, or the sigmoid of two classes."""
    model = operator.raw_operator
    raw, targets = _histogram_values(scope, operator, container)
    if len(model.classes_) != max(2, targets):
        raise ModelError("histogram boosting must have as many classes as scores to be exported")
    _finish_shares(scope, operator, container, raw, targets)


def _finish_shares(scope: Any, operator: Any, container: Any, raw: str, targets: int) -> None:
    """Write label and probabilities: softmax, or the sigmoid of one score for two classes."""
    shares = scope.get_unique_variable_name("shares")
    if targets > 1:
        container.add_node(
            "Softmax", [raw], [shares], op_version=13, axis=1,
            name=scope.get_unique_operator_name("Softmax"),
        )  # fmt: skip
    else:
        first, second = (scope.get_unique_variable_name(name) for name in ("first", "second"))
        negative = scope.get_unique_variable_name("negative")
        named = scope.get_unique_operator_name
        container.add_node("Neg", [raw], [negative], name=named("Neg"))
        container.add_node("Sigmoid", [negative], [first], name=named("Sigmoid"))
        container.add_node("Sigmoid", [raw], [second], name=named("Sigmoid"))
        container.add_node("Concat", [first, second], [shares], axis=1, name=named("Concat"))
    _finish_classifier(scope, operator, container, shares, shares)


def _convert_histogram_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees, and apply the inverse link of the loss."""
    model = operator.raw_operator
    raw, _ = _histogram_values(scope, operator, container)
    link = type(model._loss.link).__name__
    if link not in ("IdentityLink", "LogLink"):
        raise ModelError(f"the link of the loss must be identity or log, but is {link}")
    named = scope.get_unique_operator_name("Link")
    operation = "Exp" if link == "LogLink" else "Identity"
    container.add_node(operation, [raw], operator.outputs[0].full_name, name=named)


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


def _convert_isolation_forest(scope: Any, operator: Any, container: Any) -> None:
    """Add the depths of all trees; a row is an outlier if 2 to the minus mean depth is large."""
    from sklearn.ensemble._iforest import _average_path_length

    model = operator.raw_operator
    trees = []
    for number, (estimator, features) in enumerate(
        zip(model.estimators_, model.estimators_features_, strict=True)
    ):
        tree = estimator.tree_
        depths = model._decision_path_lengths[number] + model._average_path_length_per_tree[number]
        trees.append(
            Tree(
                np.where(tree.feature < 0, 0, np.asarray(features)[np.maximum(tree.feature, 0)]),
                tree.threshold,
                tree.children_left,
                tree.children_right,
                np.asarray(tree.missing_go_to_left),
                tree.children_left < 0,
                (depths - 1.0)[:, None],
            )
        )
    source = _cast_input(scope, operator, container, np.float32)
    total = _add_ensemble(scope, container, source, trees, 1, "float32")
    usual = len(trees) * float(_average_path_length(np.array([model._max_samples]))[0])
    named, value = scope.get_unique_operator_name, scope.get_unique_variable_name
    scaled, power, score = value("scaled"), value("power"), value("score")
    factor = Nodes(scope, container).constant(np.float32(-np.log(2.0) / usual if usual else 0.0))
    container.add_node("Mul", [total, factor], [scaled], name=named("Mul"))
    container.add_node("Exp", [scaled], [power], name=named("Exp"))
    offset = Nodes(scope, container).constant(np.float32(-model.offset_))
    container.add_node("Sub", [offset, power], [score], name=named("Sub"))
    label, scores = (output.full_name for output in operator.outputs[:2])
    outlier = value("outlier")
    zero, minus, plus = (
        Nodes(scope, container).constant(one) for one in (np.float32(0), np.int64(-1), np.int64(1))
    )
    container.add_node("Less", [score, zero], [outlier], name=named("Less"))
    whole = value("whole")
    container.add_node("Where", [outlier, minus, plus], [whole], name=named("Where"))
    flat = Nodes(scope, container).constant(np.array([-1], np.int64))
    container.add_node("Reshape", [whole, flat], [label], name=named("Reshape"))
    container.add_node("Identity", [score], [scores], name=named("Identity"))


def _histogram_values(scope: Any, operator: Any, container: Any) -> tuple[str, int]:
    """Add the node that adds the trees; return its output (float32), and the number of targets."""
    model = operator.raw_operator
    features = features_of(model)
    trees: list[Tree] = []
    for iteration in model._predictors:
        for target, predictor in enumerate(iteration):
            nodes = predictor.nodes
            trees.append(
                Tree(
                    features.nodes[len(trees)],
                    np.where(nodes["is_categorical"], THRESHOLD, nodes["num_threshold"]),
                    nodes["left"],
                    nodes["right"],
                    nodes["missing_go_to_left"],
                    nodes["is_leaf"],
                    nodes["value"][:, None],
                    target,
                )
            )
    targets = int(model.n_trees_per_iteration_)
    kinds = {type(one.type).__name__ for one in operator.inputs}
    dtype = "float64" if "DoubleTensorType" in kinds else "float32"
    if features.tables or len(operator.inputs) > 1:
        source = CategoryColumns(scope, operator, container, dtype).features(features)
    elif kinds <= {"DoubleTensorType", "FloatTensorType"}:
        source = operator.inputs[0].full_name
    else:
        source = _cast_input(scope, operator, container, np.float32)
    total = _add_ensemble(scope, container, source, trees, targets, dtype)
    baseline = np.asarray(model._baseline_prediction, np.float32).reshape(1, -1)
    raw = scope.get_unique_variable_name("raw")
    container.add_node(
        "Add", [total, Nodes(scope, container).constant(baseline)], [raw],
        name=scope.get_unique_operator_name("Add"),
    )  # fmt: skip
    return raw, targets


def _add_ensemble(
    scope: Any, container: Any, source: str, trees: list[Tree], targets: int, dtype: str
) -> str:
    total = scope.get_unique_variable_name("total")
    container.add_node(
        "TreeEnsembleRegressor",
        [source],
        [total],
        op_domain="ai.onnx.ml",
        op_version=_ML_OPSET,
        name=scope.get_unique_operator_name("TreeEnsembleRegressor"),
        **ensemble_attributes(trees, targets, dtype),
    )
    return total


def _finish_classifier(
    scope: Any, operator: Any, container: Any, scores: str, probabilities: str
) -> None:
    """Write label and probabilities: the first class with the largest score."""
    from onnx import TensorProto

    label, shares = (output.full_name for output in operator.outputs[:2])
    classes = np.asarray(operator.raw_operator.classes_)
    if classes.dtype.kind not in "iu":
        raise ModelError(f"classes must be whole numbers here, but are {classes.dtype}")
    place = scope.get_unique_variable_name("place")
    named = scope.get_unique_operator_name
    container.add_node(
        "ArgMax", [scores], [place], op_version=13, axis=1, keepdims=0, name=named("ArgMax")
    )
    table = Nodes(scope, container).constant(classes.astype(np.int64))
    container.add_node("Gather", [table, place], [label], axis=0, name=named("Gather"))
    kind = type(operator.outputs[1].type).__name__
    dtype = TensorProto.DOUBLE if kind == "DoubleTensorType" else TensorProto.FLOAT
    container.add_node("Cast", [probabilities], [shares], to=dtype, name=named("Cast"))


def _cast_input(scope: Any, operator: Any, container: Any, dtype: Any) -> str:
    from onnx import helper

    if type(operator.inputs[0].type).__name__ == "FloatTensorType":
        return str(operator.inputs[0].full_name)
    name = scope.get_unique_variable_name("rounded")
    container.add_node(
        "Cast", [operator.inputs[0].full_name], [name],
        to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
        name=scope.get_unique_operator_name("Cast"),
    )  # fmt: skip
    return str(name)

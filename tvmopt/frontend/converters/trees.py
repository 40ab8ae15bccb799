"""Converters of ensembles of trees: TreeEnsembleRegressor, TreeEnsembleClassifier, TreeEnsemble."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs, dtype_of, static_shape, text
from tvmopt.frontend.trees.attributes import array, by_node_ids, by_position
from tvmopt.frontend.trees.labels import Classes, labels_and_scores
from tvmopt.frontend.trees.post_transform import NAMES, post_transform
from tvmopt.frontend.trees.reached import uncertain, unreached, weighted, with_counts
from tvmopt.kernels.trees.ensemble import Ensemble
from tvmopt.kernels.trees.form import choose_form, choose_words
from tvmopt.kernels.trees.kernel import MAX, MIN, SUM, operands, tree_kernel
from tvmopt.kernels.trees.layout import lay_out

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_FILL = {SUM: 0.0, MIN: np.inf, MAX: -np.inf}
_INTEGERS = ("int32", "int64")


def tree_ensemble_regressor(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the targets (rows, targets), float32."""
    x = _Input(builder, inputs)
    targets = int(attributes.get("n_targets", 1))
    ensemble = by_node_ids(attributes, "target", x.dtype, x.features, targets)
    return _targets(
        x,
        ensemble,
        text(attributes, "aggregate_function", "SUM"),
        text(attributes, "post_transform", "NONE"),
        array(attributes, "base_values", "float64"),
        "float32",
    )


def tree_ensemble(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the targets (rows, targets), in the dtype of the input."""
    x = _Input(builder, inputs)
    aggregate = int(attributes.get("aggregate_function", _AGGREGATES.index("SUM")))
    transform = int(attributes.get("post_transform", 0))
    for name, value, known in (
        ("aggregate_function", aggregate, _AGGREGATES),
        ("post_transform", transform, NAMES),
    ):
        if not 0 <= value < len(known):
            raise ValueError(f"{name} must be in [0, {len(known)}), but is {value}")
    ensemble = by_position(attributes, x.dtype, x.features)
    names = _AGGREGATES[aggregate], NAMES[transform]
    return _targets(x, ensemble, *names, np.zeros(0), x.dtype)


def tree_ensemble_classifier(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the labels (rows,), int64, and the scores (rows, classes), float32."""
    x = _Input(builder, inputs)
    labels = array(attributes, "classlabels_int64s", "int64")
    if attributes.get("classlabels_strings") or not len(labels):
        raise ValueError("labels must be integers to be compiled, but are texts")
    ensemble = by_node_ids(attributes, "class", x.dtype, x.features, len(labels))
    classes = Classes(ensemble, labels, array(attributes, "base_values", "float64"))
    scores = x.scores(classes.summed(), SUM)
    transform = text(attributes, "post_transform", "NONE")
    return relax.Tuple(labels_and_scores(builder, classes, scores, transform))


def _targets(
    x: _Input, ensemble: Ensemble, aggregate: str, transform: str, base: np.ndarray, dtype: str
) -> relax.Expr:
    """Return the scores of targets, aggregated and transformed."""
    if aggregate not in _AGGREGATES:
        raise ValueError(
            f"aggregate_function must be of {', '.join(_AGGREGATES)}, but is {aggregate}"
        )
    if transform not in NAMES:
        raise ValueError(f"post_transform must be of {', '.join(NAMES)}, but is {transform}")
    operation = {"MIN": MIN, "MAX": MAX}.get(aggregate, SUM)
    if operation != SUM and not np.isfinite(ensemble.weight).all():
        raise ValueError(f"weights must be finite for {aggregate}, but one is not")
    count = ensemble.targets
    based = len(base) == count
    # A score without any weight stays 0: it gets no base value.
    counted = uncertain(ensemble) if based and count > 1 and operation == SUM else []
    scores = x.scores(with_counts(ensemble, counted), operation)
    none = None
    if operation != SUM:
        none = relax.op.isinf(scores)
    elif counted:
        none = unreached(scores, count, counted)
        scores = x.builder.emit(relax.op.strided_slice(scores, [1], [0], [count]))
    if aggregate == "AVERAGE":
        scores = relax.op.divide(scores, relax.const(len(ensemble.roots), x.dtype))
    if based:
        base = np.where(np.isin(np.arange(count), weighted(ensemble)), base, 0)
        scores = relax.op.add(scores, relax.const(base.astype(x.dtype), x.dtype))
    if none is not None:
        scores = relax.op.where(none, relax.const(0, x.dtype), scores)
    if ensemble.targets == 1 and transform != "PROBIT":
        transform = "NONE"  # as in ONNX Runtime
    if transform != "NONE":
        scores = post_transform(transform, relax.op.astype(scores, "float32"))
    return x.builder.normalize(relax.op.astype(scores, dtype))


class _Input:
    """Rows of features, in the dtype that trees compare them in.

    Raises:
        ValueError: When it is no matrix of a supported dtype.
    """

    def __init__(self, builder: relax.BlockBuilder, inputs: Inputs) -> None:
        [rows] = inputs
        shape, given = static_shape(rows), dtype_of(rows)
        if len(shape) == 1:
            shape = [1, *shape]
            rows = builder.emit(relax.op.reshape(rows, shape))
        if len(shape) != 2:
            raise ValueError(f"the input must be a matrix, but has shape {shape}")
        if given in _INTEGERS:
            rows = builder.emit(relax.op.astype(rows, "float32"))
        elif given not in ("float32", "float64"):
            raise ValueError(f"features must be float32, float64 or integers, but are {given}")
        self.builder, self._rows = builder, rows
        self.rows, self.features = shape
        self.dtype = "float64" if given == "float64" else "float32"

    def scores(self, ensemble: Ensemble, operation: str) -> relax.Expr:
        """Return the scores of all trees together (rows, targets)."""
        layout = choose_words(lay_out(ensemble, _FILL[operation]))
        function = tree_kernel(layout, self.rows, choose_form(layout, self.rows), operation)
        arrays = [getattr(layout, name) for name in operands(layout)]
        constants = [relax.const(array, str(array.dtype)) for array in arrays]
        symbol = self.builder.add_func(function, "tree_ensemble")
        kind = relax.TensorType((self.rows, layout.targets), layout.dtype)
        return self.builder.emit(relax.op.call_tir(symbol, [self._rows, *constants], kind))

"""Labels and scores of TreeEnsembleClassifier, by the rules of ONNX Runtime.

With more than two classes, the label is that of the largest score, of classes that any reached leaf
has a weight for. With two classes, ONNX Runtime compares the score of the second class, or the only
score where all weights are of one class, with 0; or with 0.5, where all weights of the one class
are positive. The other score then follows from the first one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from tvmopt.frontend.trees.post_transform import post_transform
from tvmopt.frontend.trees.reached import uncertain, unreached, weighted, with_counts
from tvmopt.kernels.trees.ensemble import Ensemble


@dataclasses.dataclass(frozen=True)
class Classes:
    """Weights of classes.

    Attributes:
        ensemble: The trees; targets are classes.
        labels: Label of each class, int64.
        base: Base values; none, one, or one for each class.
    """

    ensemble: Ensemble
    labels: np.ndarray
    base: np.ndarray

    @property
    def ids(self) -> list[int]:
        """Classes that have weights."""
        return weighted(self.ensemble)

    @property
    def all_positive(self) -> bool:
        """Whether no weight is negative."""
        return bool((self.ensemble.weight >= 0).all())

    def summed(self) -> Ensemble:
        """Return the trees whose sums :func:`labels_and_scores` takes.

        Of two classes, one target if all weights are of one class. Of more classes, one more target
        for each uncertain class: the number of its weights that a row reaches.
        """
        e = self.ensemble
        if len(self.labels) == 2 and len(self.ids) == 1:
            return dataclasses.replace(e, targets=1, weight_target=np.zeros_like(e.weight_target))
        return with_counts(e, self.counted)

    @property
    def counted(self) -> list[int]:
        """Of more than two classes, the uncertain ones without a base value."""
        if len(self.labels) <= 2:
            return []
        return [target for target in uncertain(self.ensemble) if target >= len(self.base)]


def labels_and_scores(
    builder: relax.BlockBuilder, classes: Classes, scores: relax.Expr, transform: str
) -> list[relax.Expr]:
    """Return labels (rows,), int64, and scores (rows, classes), float32.

    Args:
        builder: Block builder to emit into.
        classes: Weights of classes.
        scores: Sums of weights (rows, targets of ``classes.summed()``).
        transform: Post-transform.

    Raises:
        ValueError: When ONNX Runtime's answer would depend on more than scores.
    """
    if not np.isfinite(classes.ensemble.weight).all() or not np.isfinite(classes.base).all():
        raise ValueError("weights and base values of classes must be finite, but one is not")
    count = len(classes.labels)
    if count > 2:
        made = _several(builder, classes, scores, transform)
    elif count == 2:
        made = _two(builder, classes, scores, transform)
    else:
        raise ValueError("there must be two classes or more, but there is one")
    return [builder.emit(each) for each in made]


def _several(
    builder: relax.BlockBuilder, classes: Classes, scores: relax.Expr, transform: str
) -> list[relax.Expr]:
    e, labels, base = classes.ensemble, classes.labels, classes.base
    dtype = e.dtype
    if len(base) > e.targets:
        raise ValueError(f"base_values must be at most {e.targets}, but are {len(base)}")
    counted = classes.counted
    sums = scores
    if counted:
        sums = builder.emit(op.strided_slice(scores, [1], [0], [e.targets]))
    if len(base):
        padded = np.zeros(e.targets, dtype)
        padded[: len(base)] = base
        sums = builder.emit(op.add(sums, relax.const(padded, dtype)))
    known = np.zeros(e.targets, bool)
    known[classes.ids] = True
    known[: len(base)] = True
    eligible = sums
    if not known.all():
        lowest = np.where(known, 0, -np.inf).astype(dtype)
        eligible = op.add(eligible, relax.const(lowest, dtype))
    if counted:
        none = unreached(scores, e.targets, counted)
        eligible = op.where(none, relax.const(-np.inf, dtype), eligible)
    best = op.argmax(builder.emit(eligible), axis=1)
    chosen = op.take(relax.const(labels, "int64"), builder.emit(best), axis=0, mode="clip")
    return [chosen, post_transform(transform, op.astype(sums, "float32"))]


def _two(
    builder: relax.BlockBuilder, classes: Classes, scores: relax.Expr, transform: str
) -> list[relax.Expr]:
    if uncertain(classes.ensemble):
        raise ValueError("each leaf must have weights of the same classes, but some differ")
    dtype, base, ids = classes.ensemble.dtype, classes.base, classes.ids
    if ids == [0, 1]:
        pair = [op.strided_slice(scores, [1], [n], [n + 1]) for n in (0, 1)]
        if len(base) == 2:
            second = builder.emit(op.add(pair[0], relax.const(base[1], dtype)))
            pair = [op.negative(second), second]
        elif len(base) == 1:
            pair[0] = op.add(pair[0], relax.const(base[0], dtype))
        pair = [builder.emit(each) for each in pair]
        # ONNX Runtime answers 1 and 0 here, whatever the labels are.
        label = _where_above(pair[1], 0.0, [0, 1])
        return [label, _transformed(pair, transform)]
    bound = 0.5 if classes.all_positive else 0.0
    score = scores
    zero = relax.op.zeros((int(scores.ty.shape[0]), 1), dtype)
    if ids == [1]:
        if len(base) == 2:
            raise ValueError(
                "base_values must not be two where all weights are of the second class"
            )
        return [
            _where_above(score, bound, classes.labels.tolist()),
            _transformed([zero, score], transform),
        ]
    if len(base) in (1, 2):
        score = builder.emit(op.add(score, relax.const(base[0], dtype)))
    label = _where_above(score, bound, classes.labels.tolist())
    if len(base) == 2:
        return [label, _transformed([score, zero], transform)]
    if transform == "PROBIT":
        raise ValueError("PROBIT must have scores of both classes, but has those of one")
    if transform == "LOGISTIC":
        return [label, _transformed([op.negative(score), score], transform)]
    one = relax.const(1, dtype)
    other = op.subtract(one, score) if classes.all_positive else op.negative(score)
    return [label, _transformed([other, score], "NONE")]


def _transformed(pair: Sequence[relax.Expr], transform: str) -> relax.Expr:
    """Return the transformed scores (rows, 2) of both classes (rows, 1)."""
    return post_transform(transform, op.astype(op.concat(pair, axis=1), "float32"))


def _where_above(score: relax.Expr, bound: float, labels: Sequence[int]) -> relax.Expr:
    """Return the second label where the score (rows, 1) is above ``bound``, else the first."""
    above = op.greater(op.squeeze(score, [1]), relax.const(bound, str(score.ty.dtype)))
    first, second = (relax.const(int(label), "int64") for label in labels)
    return op.where(above, second, first)

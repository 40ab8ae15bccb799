"""Targets that a row may have no score for: no leaf that it reaches has a weight for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op

from tvmopt.kernels.trees.ensemble import Ensemble


def weighted(ensemble: Ensemble) -> list[int]:
    """Return the targets that any leaf has a weight for."""
    return sorted({int(target) for target in ensemble.weight_target})


def uncertain(ensemble: Ensemble) -> list[int]:
    """Return the weighted targets for which no tree has a weight at all of its leaves.

    The nodes of a tree must be neighbours that begin with its root.
    """
    e, found = ensemble, []
    tree = np.searchsorted(e.roots, np.arange(len(e.leaf)), side="right") - 1
    leaves = np.bincount(tree[e.leaf], minlength=len(e.roots))
    for target in weighted(e):
        nodes = np.unique(e.weight_node[e.weight_target == target])
        if not np.any(np.bincount(tree[nodes[e.leaf[nodes]]], minlength=len(e.roots)) == leaves):
            found.append(target)
    return found


def with_counts(ensemble: Ensemble, targets: Sequence[int]) -> Ensemble:
    """Return the trees with one more target for each of ``targets``: its weights reached."""
    e = ensemble
    place = np.full(e.targets, -1)
    place[list(targets)] = e.targets + np.arange(len(targets))
    more = place[e.weight_target] >= 0
    ones = np.ones(np.count_nonzero(more))
    return dataclasses.replace(
        e,
        targets=e.targets + len(targets),
        weight_node=np.concatenate([e.weight_node, e.weight_node[more]]),
        weight_target=np.concatenate([e.weight_target, place[e.weight_target[more]]]),
        weight=np.concatenate([e.weight, ones]),
    )


def unreached(scores: relax.Expr, count: int, targets: Sequence[int]) -> relax.Expr:
    """Return whether a row has reached no weight of a target, bool (rows, count).

    Args:
        scores: Scores of :func:`with_counts` (rows, count + counted targets).
        count: Targets without the counts.
        targets: The counted targets; at least one.
    """
    total = count + len(targets)
    counts = op.strided_slice(scores, [1], [count], [total])
    place = np.full(count, -1)
    place[list(targets)] = np.arange(len(targets))
    own = op.take(counts, relax.const(np.maximum(place, 0), "int64"), axis=1, mode="clip")
    none = op.less(own, relax.const(0.5, str(scores.ty.dtype)))
    return op.logical_and(none, relax.const((place >= 0)[None], "bool"))

"""Categorical splits of histogram gradient boosting: each set of categories becomes a column.

before -> after: ``category of a row in {Bern, Lyon}`` -> a column that holds 0 where the row goes
left and 1 where it goes right, and a comparison with 0.5. A look-up in a table gives all columns of
a feature at once; unknown and missing categories have the row of the table that a node's direction
for missing values fills.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ModelError

#: Threshold of the columns of this file.
THRESHOLD = 0.5
_BITS = 32


@dataclasses.dataclass(frozen=True)
class CategoryTable:
    """Columns of one categorical feature.

    Attributes:
        feature: Place of the feature among the columns of the model.
        categories: The categories that the encoder of the model knows, without missing ones; a
            category's code is its place.
        columns: float32 (categories + 1, sets): 0 for left and 1 for right; row 0 is that of
            unknown and missing categories, and row 1 + code that of a category.
    """

    feature: int
    categories: tuple[Any, ...]
    columns: np.ndarray


@dataclasses.dataclass(frozen=True)
class Features:
    """Comparisons of the nodes of trees.

    Attributes:
        numbers: Places of the numeric columns, in order: the first features of the trees.
        tables: Tables of the categorical columns, whose columns follow in order.
        nodes: Feature of each node, by tree in the order of the model.
    """

    numbers: tuple[int, ...]
    tables: tuple[CategoryTable, ...]
    nodes: tuple[np.ndarray, ...]


def features_of(model: Any) -> Features:
    """Return what the nodes of a fitted histogram gradient boosting model compare.

    Raises:
        ModelError: When the model encodes its categories in a way that is not known.
    """
    predictors = [one for iteration in model._predictors for one in iteration]
    mask = getattr(model, "is_categorical_", None)
    if mask is None or not np.any(mask):
        numbers = tuple(range(model.n_features_in_))
        return Features(numbers, (), tuple(one.nodes["feature_idx"] for one in predictors))
    categorical = np.flatnonzero(mask)
    numbers = tuple(map(int, np.flatnonzero(~np.asarray(mask))))
    encoder = getattr(model, "_preprocessor", None)
    if encoder is None:
        raise ModelError(
            "histogram boosting with categorical features must encode them itself to be exported, "
            "as scikit-learn 1.4 and later does; fit it again"
        )
    known = encoder.named_transformers_["encoder"].categories_
    sets: list[dict[bytes, int]] = [{} for _ in categorical]
    columns: list[list[np.ndarray]] = [[] for _ in categorical]
    places = []  # (feature, set) of each categorical node, by tree
    for one in predictors:
        found = np.zeros((len(one.nodes), 2), int)
        for at in np.flatnonzero(one.nodes["is_categorical"]):
            node = one.nodes[at]
            feature = int(node["feature_idx"])  # the encoder puts categorical columns first
            column = _directions(one, node, len(_present(known[feature])))
            key = column.tobytes()
            if key not in sets[feature]:
                sets[feature][key] = len(columns[feature])
                columns[feature].append(column)
            found[at] = feature, sets[feature][key]
        places.append(found)
    counts = [len(one) for one in columns]
    starts = len(numbers) + np.cumsum([0, *counts[:-1]])
    nodes = tuple(
        np.where(
            one.nodes["is_categorical"], starts[found[:, 0]] + found[:, 1],
            one.nodes["feature_idx"].astype(int) - len(categorical),
        )
        for one, found in zip(predictors, places, strict=True)
    )  # fmt: skip
    tables = tuple(
        CategoryTable(int(feature), _present(known[at]), np.stack(columns[at], 1))
        for at, feature in enumerate(categorical)
        if columns[at]
    )
    return Features(numbers, tables, nodes)


def _present(categories: Sequence[Any]) -> tuple[Any, ...]:
    """Return the categories that are no missing values, which come last."""
    return tuple(one for one in categories if one is not None and one == one)


def _directions(predictor: Any, node: Any, count: int) -> np.ndarray:
    """Return 0 for left and 1 for right: of a missing category, then of each category."""
    words = predictor.raw_left_cat_bitsets[node["bitset_idx"]]
    code = np.arange(count)
    left = (words[code // _BITS] >> (code % _BITS).astype(np.uint32)) & 1
    return np.concatenate([[not node["missing_go_to_left"]], left == 0]).astype(np.float32)

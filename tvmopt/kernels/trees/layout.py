"""Node arrays of an ensemble, laid out for the cache.

A node is two words: where to go on, and its key::

    word 0    left child << SHIFT | column        word 1    key
    next  =   left child + (key of the column > key)

The right child lies behind the left one, and a pair begins at an even place: both are in one cache
line. Pairs lie in breadth-first order, so that the first levels of a tree share few lines. Places
count from the root of the tree::

    0: root   1: unused   2, 3: children of the root   4, 5: children of the first inner node ...

A leaf has itself as left child, and compares a column that holds key 0: it never moves on. So all
walks through a tree take as many steps, without branches. Word 1 of a leaf is its weight, or the
row of its weights.

Words are uint32 if the features are float32 and all fields fit 16 bits, else uint64.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tvmopt.kernels.trees.comparisons import KEY_DTYPES, Comparisons, comparisons
from tvmopt.kernels.trees.ensemble import Ensemble

_HALF = {"uint32": 16, "uint64": 32}
# The kernel has a loop for each run of columns that send NaN in one direction.
_MOST_RUNS = 8


@dataclasses.dataclass(frozen=True)
class TreeLayout:
    """Arrays of an ensemble.

    Attributes:
        dtype: dtype of the features and of the weights.
        features: Features of a row of the input.
        targets: Values that a tree adds to: columns of ``weights``, or targets.
        nodes: Words of all nodes (places, 2).
        starts: Place of the root of each tree, int32.
        depths: Steps to the deepest leaf of each tree, int32.
        tree_targets: Target of each tree, int32, if every leaf holds one weight of this target.
        weights: Else: weights of each leaf (leaves, targets).
        columns: Feature of each column of keys, int32; without the last column, which holds 0.
        missing_left: Whether NaN has the smallest key in each column.
        identity: Number of first columns that are the features in their order: all or none.
    """

    dtype: str
    features: int
    targets: int
    nodes: np.ndarray
    starts: np.ndarray
    depths: np.ndarray
    tree_targets: np.ndarray | None
    weights: np.ndarray | None
    columns: np.ndarray
    missing_left: np.ndarray
    identity: int

    @property
    def shift(self) -> int:
        """Bits of a column in word 0."""
        return _HALF[str(self.nodes.dtype)]

    @property
    def visits(self) -> int:
        """Nodes that a row visits, in all trees."""
        return int(self.depths.sum())


def lay_out(ensemble: Ensemble, fill: float = 0.0) -> TreeLayout:
    """Return the arrays of an ensemble.

    Args:
        ensemble: The trees.
        fill: Weight of a leaf for targets that it has no weight for.

    Raises:
        ValueError: When a node has two trees, or branches form a cycle.
    """
    compared = comparisons(ensemble)
    pairs = _pairs(ensemble.roots, compared)
    column, columns, missing_left, identity = _columns(ensemble.features, compared, pairs.inner)
    payload, tree_targets, weights = _payload(ensemble, pairs, len(compared.leaf), fill)
    largest = max(len(columns), int(np.diff(pairs.starts, append=pairs.places).max()))
    key_bits = compared.key.dtype.itemsize * 8
    word = np.uint32 if key_bits == 32 and largest < 1 << 16 else np.uint64
    shift = word(_HALF[np.dtype(word).name])

    nodes = np.zeros((pairs.places, 2), word)

    def put(places: np.ndarray, starts: np.ndarray, node: np.ndarray) -> None:
        leaf = compared.leaf[node]
        left = np.where(leaf, places - starts, pairs.child[node]).astype(word)
        at = np.where(leaf, len(columns), column[node]).astype(word)
        nodes[places, 0] = left << shift | at
        nodes[places, 1] = np.where(leaf, payload[node], compared.key[node])

    put(pairs.starts, pairs.starts, ensemble.roots)
    starts = pairs.starts[pairs.tree[pairs.inner]]
    first = starts + pairs.child[pairs.inner]
    put(first, starts, compared.left[pairs.inner])
    put(first + 1, starts, compared.right[pairs.inner])
    return TreeLayout(
        dtype=ensemble.dtype,
        features=ensemble.features,
        targets=ensemble.targets,
        nodes=nodes,
        starts=pairs.starts.astype(np.int32),
        depths=pairs.depths.astype(np.int32),
        tree_targets=tree_targets,
        weights=weights,
        columns=columns.astype(np.int32),
        missing_left=missing_left,
        identity=identity,
    )


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Places of the children of each inner node.

    Attributes:
        tree: Tree of each node; -1 for a node that no tree reaches.
        inner: Inner nodes that are reached, tree by tree in breadth-first order.
        child: Place of the left child of each inner node, from the root of its tree.
        starts: Place of each root.
        depths: Steps to the deepest leaf of each tree.
        places: Number of places of all trees.
    """

    tree: np.ndarray
    inner: np.ndarray
    child: np.ndarray
    starts: np.ndarray
    depths: np.ndarray
    places: int


def _pairs(roots: np.ndarray, compared: Comparisons) -> _Pairs:
    """Walk through all trees, level by level."""
    count, trees = len(compared.leaf), len(roots)
    tree = np.full(count, -1)
    depths = np.zeros(trees, int)
    if len(np.unique(roots)) < trees:
        raise ValueError("each tree must have a root of its own")
    tree[roots] = np.arange(trees)
    placed = np.zeros(count, bool)
    order = []
    level = roots
    for depth in range(count + 1):
        inner = level[~compared.leaf[level]]
        if not len(inner):
            break
        if depth == count:
            raise ValueError("branches of trees must not form a cycle")
        depths[tree[inner]] = depth + 1
        new = inner[~placed[inner]]
        placed[new] = True
        order.append(new)
        children = np.stack([compared.left[inner], compared.right[inner]], 1).reshape(-1)
        owners = np.repeat(tree[inner], 2)
        free = tree[children] < 0
        tree[children[free]] = owners[free]
        if np.any(tree[children] != owners):
            raise ValueError("a node must belong to one tree")
        level, where = np.unique(children, return_index=True)
        level = level[np.argsort(where)]
    nodes = np.concatenate(order) if order else np.zeros(0, int)
    nodes = nodes[np.argsort(tree[nodes], kind="stable")]
    sizes = np.bincount(tree[nodes], minlength=trees)
    rank = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    child = np.zeros(count, int)
    child[nodes] = 2 + 2 * rank
    ends = np.cumsum(2 + 2 * sizes)
    return _Pairs(tree, nodes, child, ends - 2 - 2 * sizes, depths, int(ends[-1]))


def _columns(
    features: int, compared: Comparisons, inner: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return the column of each node; feature and missing_left of each column; ``identity``."""
    kind = compared.feature * 2 + compared.missing_left
    used = np.unique(kind[inner])
    used = used[np.argsort(used % 2, kind="stable")]  # two runs of one direction
    identity = 0
    # All features in their order, each with the direction of NaN that it is used with first.
    first = np.arange(features) * 2
    first = np.where(np.isin(first, used) | ~np.isin(first + 1, used), first, first + 1)
    if features <= 2 * len(used) and np.count_nonzero(np.diff(first % 2)) < _MOST_RUNS:
        used = np.concatenate([first, used[~np.isin(used, first)]])
        identity = features
    column = np.zeros(2 * features, int)
    column[used] = np.arange(len(used))
    return column[kind], used // 2, (used % 2).astype(bool), identity


def _payload(
    ensemble: Ensemble, pairs: _Pairs, count: int, fill: float
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return word 1 of each leaf; then the target of each tree, or the weights of each leaf."""
    e = ensemble
    bits = np.dtype(KEY_DTYPES[e.dtype])
    payload = np.zeros(count, bits)
    reached = (pairs.tree[e.weight_node] >= 0) & e.leaf[e.weight_node]
    node, target = e.weight_node[reached], e.weight_target[reached]
    weight = e.weight[reached].astype(e.dtype)
    leaves = np.flatnonzero(e.leaf & (pairs.tree[: len(e.leaf)] >= 0))
    trees = pairs.tree[node]
    tree_targets = np.zeros(len(e.roots), np.int32)
    tree_targets[trees] = target
    once = len(node) == len(leaves) and np.array_equal(np.sort(node), leaves)
    if once and np.array_equal(tree_targets[trees], target):
        payload[node] = weight.view(bits)
        return payload, tree_targets, None
    payload[leaves] = np.arange(len(leaves))
    row = np.zeros(count, int)
    row[leaves] = np.arange(len(leaves))
    weights = np.full((max(1, len(leaves)), e.targets), fill, e.dtype)
    weights[row[node], target] = weight
    if len(np.unique(row[node] * e.targets + target)) < len(node):
        raise ValueError("a leaf must have one weight for a target")
    return payload, None, weights

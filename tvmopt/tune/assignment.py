"""Minimise a sum of unary and pairwise costs over the nodes of a graph.

Dynamic programming by variable elimination: the next node is the one with the smallest table over
its neighbours. Each eliminated node leaves a table with its best choice for every choice of its
neighbours. The result is exact for chains, trees and graphs of small treewidth, such as residual
networks. Where a table exceeds the size limit, coordinate descent improves the best of the given
starting points, and the result is marked as not exact.

Source: bucket elimination, Dechter, "Bucket elimination: a unifying framework for reasoning",
Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

# Maximum number of entries of one elimination table.
_MOST = 1 << 18


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Result of the minimisation.

    Attributes:
        choice: Index of the chosen value of each node.
        cost: Total cost.
        exact: Whether the cost is proven to be minimal.
    """

    choice: tuple[int, ...]
    cost: float
    exact: bool


def total_cost(
    choice: Sequence[int],
    unary: Sequence[Sequence[float]],
    pairwise: Mapping[tuple[int, int], np.ndarray],
) -> float:
    """Return the cost of an assignment; see :func:`minimise` for the arguments."""
    total = sum(costs[c] for costs, c in zip(unary, choice, strict=True))
    return total + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairwise.items())


def minimise(
    unary: Sequence[Sequence[float]],
    pairwise: Mapping[tuple[int, int], np.ndarray],
    starts: Sequence[Sequence[int]] = (),
) -> Assignment:
    """Return an assignment of minimal total cost.

    Args:
        unary: For each node, the cost of each choice.
        pairwise: For node pairs ``i < j``, a cost table ``[choice of i, choice of j]``.
        starts: Starting points of the coordinate descent, which runs where exact elimination
            needs too large a table. All zeros is always a further starting point.
    """
    found = _eliminate(unary, pairwise)
    if found is not None:
        return Assignment(found, total_cost(found, unary, pairwise), True)
    tried = [_improved(list(start), unary, pairwise) for start in (*starts, [0] * len(unary))]
    best = min(tried, key=lambda choice: total_cost(choice, unary, pairwise))
    return Assignment(tuple(best), total_cost(best, unary, pairwise), False)


def _eliminate(
    unary: Sequence[Sequence[float]], pairwise: Mapping[tuple[int, int], np.ndarray]
) -> tuple[int, ...] | None:
    """Return the exact solution; None where a table exceeds the size limit."""
    sizes = [len(costs) for costs in unary]
    factors: list[tuple[tuple[int, ...], np.ndarray]] = [
        ((i,), np.asarray(costs, dtype=float)) for i, costs in enumerate(unary)
    ]
    factors += [(pair, np.asarray(table, dtype=float)) for pair, table in pairwise.items()]
    left = set(range(len(unary)))
    around: list[set[int]] = [set() for _ in unary]
    for i, j in pairwise:
        around[i].add(j)
        around[j].add(i)
    order: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    while left:
        node = min(left, key=lambda n: (math.prod(sizes[m] for m in around[n]), n))
        others = tuple(sorted(around[node]))
        scope = (*others, node)
        if math.prod(sizes[n] for n in scope) > _MOST:
            return None
        table = np.zeros([sizes[n] for n in scope])
        for own, values in factors:
            if node in own:
                table = table + _spread(values, own, scope)
        factors = [factor for factor in factors if node not in factor[0]]
        factors.append((others, table.min(axis=-1)))
        order.append((node, others, table.argmin(axis=-1)))
        left.remove(node)
        for other in others:  # the new table makes them neighbours of each other
            around[other] |= around[node]
            around[other] -= {other, node}
    choice = [0] * len(unary)
    for node, others, best in reversed(order):
        choice[node] = int(best[tuple(choice[n] for n in others)])
    return tuple(choice)


def _spread(values: np.ndarray, own: tuple[int, ...], scope: tuple[int, ...]) -> np.ndarray:
    """Broadcast ``values`` from axes ``own`` to axes ``scope``; missing axes have extent 1."""
    order = sorted(range(len(own)), key=lambda k: scope.index(own[k]))
    shape = [1] * len(scope)
    for k in order:
        shape[scope.index(own[k])] = values.shape[k]
    return values.transpose(order).reshape(shape)


def _improved(
    choice: list[int],
    unary: Sequence[Sequence[float]],
    pairwise: Mapping[tuple[int, int], np.ndarray],
) -> list[int]:
    """Coordinate descent: set each node to its best choice given the others, until none changes."""
    around: dict[int, list[tuple[int, np.ndarray]]] = {i: [] for i in range(len(unary))}
    for (i, j), table in pairwise.items():
        around[i].append((j, np.asarray(table, dtype=float)))
        around[j].append((i, np.asarray(table, dtype=float).T))
    changed = True
    while changed:
        changed = False
        for i, costs in enumerate(unary):
            here = np.asarray(costs, dtype=float).copy()
            for j, table in around[i]:
                here += table[:, choice[j]]
            best = int(here.argmin())
            if here[best] < here[choice[i]] - 1e-12:
                choice[i], changed = best, True
    return choice

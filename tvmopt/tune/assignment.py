"""The cheapest choice for every node of a graph, when nodes and edges have costs.

Dynamic programming over the graph: nodes are eliminated one after the other, those with the fewest
neighbours first; each leaves a table of its best choice for every choice of its neighbours. Exact
on chains and trees, and on whatever joins few branches at a time, as residual networks do. Where a
table would grow too large, the answer is improved step by step from the best starting point given,
and is said not to be exact.

Source: bucket elimination, Dechter, "Bucket elimination: a unifying framework for reasoning",
Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

# Entries of one table.
_MOST = 1 << 18


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What was found.

    Attributes:
        choice: Index of the choice of each node.
        cost: Its total.
        exact: Whether no other assignment costs less.
    """

    choice: tuple[int, ...]
    cost: float
    exact: bool


def total_cost(
    choice: Sequence[int],
    unary: Sequence[Sequence[float]],
    pairwise: Mapping[tuple[int, int], np.ndarray],
) -> float:
    """Cost of an assignment; arguments as of :func:`minimise`."""
    total = sum(costs[c] for costs, c in zip(unary, choice, strict=True))
    return total + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairwise.items())


def minimise(
    unary: Sequence[Sequence[float]],
    pairwise: Mapping[tuple[int, int], np.ndarray],
    starts: Sequence[Sequence[int]] = (),
) -> Assignment:
    """The assignment of least total cost.

    Args:
        unary: For each node the cost of each of its choices.
        pairwise: For pairs of nodes ``i < j`` a table of costs, ``[choice of i, choice of j]``.
        starts: Assignments to begin from where the exact way is too large; all zeros is one, too.
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
    """The exact answer; None where a table would be too large."""
    sizes = [len(costs) for costs in unary]
    factors: list[tuple[tuple[int, ...], np.ndarray]] = [
        ((i,), np.asarray(costs, dtype=float)) for i, costs in enumerate(unary)
    ]
    factors += [(pair, np.asarray(table, dtype=float)) for pair, table in pairwise.items()]
    left = set(range(len(unary)))
    order: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    while left:
        neighbours = {
            node: sorted({n for scope, _ in factors if node in scope for n in scope} - {node})
            for node in left
        }
        node = min(left, key=lambda n: (np.prod([sizes[m] for m in neighbours[n]]), n))
        scope = (*neighbours[node], node)
        if np.prod([sizes[n] for n in scope], dtype=float) > _MOST:
            return None
        table = np.zeros([sizes[n] for n in scope])
        for own, values in factors:
            if node in own:
                table = table + _spread(values, own, scope)
        factors = [factor for factor in factors if node not in factor[0]]
        factors.append((tuple(neighbours[node]), table.min(axis=-1)))
        order.append((node, tuple(neighbours[node]), table.argmin(axis=-1)))
        left.remove(node)
    choice = [0] * len(unary)
    for node, others, best in reversed(order):
        choice[node] = int(best[tuple(choice[n] for n in others)])
    return tuple(choice)


def _spread(values: np.ndarray, own: tuple[int, ...], scope: tuple[int, ...]) -> np.ndarray:
    """``values`` over the axes of ``own``, with axes of one for the others of ``scope``."""
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
    """``choice``, each node in turn set to its best for the others, until none changes."""
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

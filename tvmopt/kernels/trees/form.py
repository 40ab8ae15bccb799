"""Cost model: words of an ensemble's nodes, order and block sizes of the loops of its function."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.trees.layout import TreeLayout
from tvmopt.kernels.trees.packed import BIN_BITS, pack

#: Walks in flight: rows of one tree, or trees of one row.
LANES, TREE_LANES = 8, 8
# Cycles of one visit of a node, with LANES walks in flight: rows of one tree, or trees of one row.
# Measured on a Zen 3, see benchmarks/results/2026-11-27-trees.md.
_ROWS_VISIT_CYCLES, _TREES_VISIT_CYCLES = 2.5, 4.0
# Slowdown of a visit where walks of one row go through nodes that no core's cache holds.
_MISSES = 3.0
# Cycles to launch a parallel region; all threads must save a multiple of it, and so must each part.
_LAUNCH_CYCLES, _WORTH, _EACH_WORTH = 12_000.0, 4.0, 2.0
#: Nodes of 8 bytes that a core keeps in its own cache. Beyond, a node of half the bytes saves
#: cycles at each visit, and the short key of each column costs some.
MOST_CACHED_NODES = 64 * 1024
_PACKED_CYCLES, _BIN_CYCLES, _HALF_CYCLES = 0.4, 60.0, 8.0
# Bytes of keys that stay in L1 beside the nodes of a tree.
_KEY_BYTES = 24 * 1024
_FEWEST_GROUPS, _MOST_GROUPS = 4, 16
# Parts of a small batch, or of the trees of one row: most threads that share them.
_PARTS = 16


@dataclasses.dataclass(frozen=True)
class TreeForm:
    """Order of the loops.

    Attributes:
        trees_in_flight: Whether the walks in flight are trees of one row, not rows of one tree.
        parts: Parts of the rows, or of the trees of each row where trees are in flight. The keys
            of one part stay in L1 while it goes through all trees.
        parallel: Whether threads share the parts.
    """

    trees_in_flight: bool
    parts: int
    parallel: bool = True


def choose_words(layout: TreeLayout) -> TreeLayout:
    """Return the layout in single words where that is predicted to be faster.

    Args:
        layout: Arrays of the ensemble, with two words for each node.
    """
    if _is_cached(layout):
        return layout
    packed = pack(layout)
    if packed is None:
        return layout
    cycles = _BIN_CYCLES if packed.key_bits == BIN_BITS else _HALF_CYCLES
    is_faster = len(layout.columns) * cycles < layout.visits * _PACKED_CYCLES
    return packed if is_faster else layout


def choose_form(layout: TreeLayout, rows: int) -> TreeForm:
    """Return the form with the fewest predicted cycles, whatever the number of threads.

    Args:
        layout: Arrays of the ensemble.
        rows: Rows of the input.
    """
    groups = -(-rows // LANES)
    by_rows = groups * LANES * layout.visits * _ROWS_VISIT_CYCLES
    by_trees = rows * layout.visits * _TREES_VISIT_CYCLES
    if by_trees < by_rows:
        work = by_trees * (1.0 if _is_cached(layout) else _MISSES)
        if work < _WORTH * _LAUNCH_CYCLES:
            return TreeForm(True, 1, parallel=False)
        tree_groups = len(layout.starts) // TREE_LANES or 1
        worth = int(work / (_EACH_WORTH * _LAUNCH_CYCLES))
        return TreeForm(True, max(1, min(-(-_PARTS // rows), worth // rows, tree_groups)))
    if by_rows < _WORTH * _LAUNCH_CYCLES:
        return TreeForm(False, -(-groups // _most_groups(layout)), parallel=False)
    few = min(_PARTS, 1 << max(0, (groups // 3).bit_length() - 1))
    many = -(-groups // _most_groups(layout))
    return TreeForm(False, few if many <= few else min(groups, -(-many // _PARTS) * _PARTS))


def _is_cached(layout: TreeLayout) -> bool:
    """Return whether a core's own cache holds all nodes."""
    return layout.nodes.nbytes <= MOST_CACHED_NODES * 8


def _most_groups(layout: TreeLayout) -> int:
    """Return the groups of LANES rows whose keys fit their share of L1."""
    row = (len(layout.columns) + 1) * 4 * (1 if layout.dtype == "float32" else 2)
    return min(_MOST_GROUPS, max(_FEWEST_GROUPS, _KEY_BYTES // (LANES * row)))

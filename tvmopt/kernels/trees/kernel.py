"""TensorIR function of an ensemble: several walks through trees in flight, without branches.

::

    parallel for part of the rows:
        keys[row, column] = key of the feature                 # integers, see comparisons
        for tree:
            for LANES rows:                            # or, of one row: for TREE_LANES trees
                for step in depth of the tree:
                    for lane in unroll(LANES):
                        left, column, key = nodes[start + at[lane]]
                        at[lane] = left + (keys[lane, column] > key)
                scores[row, target] += weight of the leaf

One step waits some 16 cycles for its loads, and issues seven instructions. Eight walks that do not
depend on each other keep the core busy. Scores are added in the order of the trees, in the dtype of
the input, whatever the form.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.passes.clamp_indices import INDICES_HOLD
from tvmopt.kernels.scheduled import OPAQUE, SCHEDULED_ATTR
from tvmopt.kernels.trees.form import LANES, TREE_LANES, TreeForm
from tvmopt.kernels.trees.layout import TreeLayout
from tvmopt.kernels.trees.packed import PackedLayout
from tvmopt.kernels.trees.words import to64, words_of

#: Operations on the scores of a row.
SUM, MIN, MAX = "sum", "min", "max"


def operands(layout: TreeLayout) -> list[str]:
    """Return the names of the arrays of ``layout`` that the function takes behind the input."""
    names = ["nodes", "starts", "depths", "columns"]
    if layout.weights is not None:
        names.append("weights")
    if layout.tree_targets is not None and layout.targets > 1:
        names.append("tree_targets")
    if isinstance(layout, PackedLayout):
        names.append("leaf_blocks")
        if layout.thresholds is not None:
            names += ["thresholds", "first_thresholds", "steps"]
    return names


def tree_kernel(
    layout: TreeLayout, rows: int, form: TreeForm, operation: str = SUM
) -> tirx.PrimFunc:
    """Return the function; its parameters are the input, the arrays of ``operands``, the scores.

    Args:
        layout: The arrays.
        rows: Rows of the input (rows, features).
        form: Order of the loops.
        operation: What each tree does with the scores (rows, targets).
    """
    with IRBuilder() as builder, build.prim_func(is_private=True, s_tir=True):
        build.func_name("main")
        build.func_attr(
            {"tirx.noalias": True, "op_pattern": OPAQUE, SCHEDULED_ATTR: True, INDICES_HOLD: True}
        )
        of = {"x": build.arg("x", build.buffer((rows, layout.features), layout.dtype))}
        for name in operands(layout):
            array = getattr(layout, name)
            of[name] = build.arg(name, build.buffer(array.shape, str(array.dtype)))
        out = build.arg("scores", build.buffer((rows, layout.targets), layout.dtype))
        _TreeKernel(layout, rows, form, operation, of, out).emit()
    return builder.get()


class _TreeKernel:
    def __init__(
        self, layout: TreeLayout, rows: int, form: TreeForm, operation: str,
        of: dict[str, tirx.Buffer], out: tirx.Buffer,
    ) -> None:  # fmt: skip
        self._l, self._rows, self._form, self._of, self._out = layout, rows, form, of, out
        self._operation = operation
        self._words = words_of(layout, of)
        self._width = len(layout.columns) + len(self._words.last_columns)

    def emit(self) -> None:
        if self._form.trees_in_flight:
            self._trees_of_each_row()
        else:
            self._rows_of_each_tree()

    def _rows_of_each_tree(self) -> None:
        """Emit the form in which one group of rows after the other walks through a tree."""
        groups, parts = -(-self._rows // LANES), self._form.parts
        most = -(-groups // parts) * LANES
        with self._tasks(parts) as part:
            keys = build.alloc_buffer((most, self._width), self._words.dtype, scope="global")
            scores = build.alloc_buffer((most, self._l.targets), self._l.dtype, scope="global")
            first, end = part * groups // parts, (part + 1) * groups // parts
            own = end - first
            count = own * LANES
            if self._rows % LANES:
                count = tirx.min(count, self._rows - first * LANES)
            with build.serial(count) as row:
                self._copy_row(keys, first * LANES + row, row)
            if self._rows % LANES:
                with build.serial(own * LANES - count) as row:
                    self._fill_row(keys, count + row)
            with build.serial(own * LANES) as row, build.serial(self._l.targets) as target:
                build.buffer_store(scores, self._start(), [row, target])
            with build.serial(len(self._l.starts)) as tree, build.serial(own) as group:
                lanes = [(tree, keys, group * LANES + lane) for lane in range(LANES)]
                at = self._walk(lanes, to64(self._of["depths"][tree]))
                for lane in range(LANES):
                    self._add(scores, group * LANES + lane, tree, at[lane])
            with build.serial(count) as row, build.serial(self._l.targets) as target:
                build.buffer_store(self._out, scores[row, target], [first * LANES + row, target])

    def _trees_of_each_row(self) -> None:
        """Emit the form in which a row walks through several trees at once."""
        trees, parts, targets = len(self._l.starts), self._form.parts, self._l.targets
        groups, rest = trees // TREE_LANES, trees % TREE_LANES
        partial = build.alloc_buffer((self._rows * parts, targets), self._l.dtype, scope="global")
        with self._tasks(self._rows * parts) as task:
            row, part = task // parts, task % parts
            keys = build.alloc_buffer((1, self._width), self._words.dtype, scope="global")
            self._copy_row(keys, row, _int(0))
            with build.serial(targets) as target:
                build.buffer_store(partial, self._start(), [task, target])
            first, end = part * groups // parts, (part + 1) * groups // parts
            with build.serial(end - first) as group:
                tree = (first + group) * TREE_LANES
                self._trees(keys, partial, task, [tree + lane for lane in range(TREE_LANES)])
            if rest:
                with build.If(part == parts - 1), build.Then():
                    tails = [_int(tree) for tree in range(trees - rest, trees)]
                    self._trees(keys, partial, task, tails)
        with build.serial(self._rows) as row, build.serial(targets) as target:
            build.buffer_store(self._out, partial[row * parts, target], [row, target])
            with build.serial(parts - 1) as part:
                more = partial[row * parts + part + 1, target]
                score = self._combine(self._out[row, target], more)
                build.buffer_store(self._out, score, [row, target])

    @contextlib.contextmanager
    def _tasks(self, count: int) -> Iterator[Expr]:
        """Emit a loop over tasks; without threads inside of a parallel loop of one iteration.

        The parallel loop marks the function as one for CPUs, which lowering for a GPU refuses.
        """
        if self._form.parallel:
            with build.parallel(count) as task:
                yield task
            return
        with build.parallel(1), build.serial(count) as task:
            yield task

    def _trees(
        self, keys: tirx.Buffer, scores: tirx.Buffer, row: Expr, trees: Sequence[Expr]
    ) -> None:
        """Walk through trees at once, as many steps as the deepest takes, and add their weights."""
        depth = build.alloc_buffer((1,), "int32", scope="local")
        build.buffer_store(depth, self._of["depths"][trees[0]], [0])
        for tree in trees[1:]:
            build.buffer_store(depth, tirx.max(depth[0], self._of["depths"][tree]), [0])
        at = self._walk([(tree, keys, _int(0)) for tree in trees], to64(depth[0]))
        if self._l.tree_targets is not None and self._l.targets == 1:
            total = scores[row, 0]
            for lane, tree in enumerate(trees):
                total = self._combine(total, self._weight(tree, at[lane]))
            build.buffer_store(scores, total, [row, 0])
            return
        for lane, tree in enumerate(trees):
            self._add(scores, row, tree, at[lane])

    def _walk(self, lanes: Sequence[tuple[Expr, tirx.Buffer, Expr]], depth: Expr) -> tirx.Buffer:
        """Emit the walks of all lanes (tree, keys, row of keys); return the places of leaves."""
        at = build.alloc_buffer((len(lanes),), "int64", scope="local")
        for lane in range(len(lanes)):
            build.buffer_store(at, tirx.const(0, "int64"), [lane])
        views: dict[int, tirx.Buffer] = {}  # of each tree: its address stays in a register
        for tree, _, _ in lanes:
            if id(tree) not in views:
                views[id(tree)] = self._words.tree(tree)
        with build.serial(depth):
            for lane, (tree, keys, row) in enumerate(lanes):
                going = self._words.next(views[id(tree)], at[lane], keys, to64(row))
                build.buffer_store(at, going, [lane])
        return at

    def _add(self, scores: tirx.Buffer, row: Expr, tree: Expr, at: Expr) -> None:
        """Add the weights of a leaf to the scores of a row."""
        if self._l.tree_targets is not None:
            target = self._of["tree_targets"][tree] if self._l.targets > 1 else _int(0)
            score = self._combine(scores[row, target], self._weight(tree, at))
            build.buffer_store(scores, score, [row, target])
            return
        with build.serial(self._l.targets) as target:
            weight = self._of["weights"][self._words.row(tree, at), target]
            build.buffer_store(scores, self._combine(scores[row, target], weight), [row, target])

    def _weight(self, tree: Expr, at: Expr) -> Expr:
        return self._words.weight(tree, at)

    def _combine(self, score: Expr, weight: Expr) -> Expr:
        if self._operation == SUM:
            return score + weight
        return tirx.min(score, weight) if self._operation == MIN else tirx.max(score, weight)

    def _start(self) -> Expr:
        value = {SUM: 0.0, MIN: math.inf, MAX: -math.inf}[self._operation]
        return tirx.const(value, self._l.dtype)

    def _copy_row(self, keys: tirx.Buffer, row: Expr, at: Expr) -> None:
        """Write the keys of one row; all features in their order, then single columns."""
        identity = self._l.identity
        missing = self._l.missing_left.tolist()
        x, columns = self._of["x"], self._of["columns"]
        for first, end in _runs(missing[:identity]):
            with build.serial(end - first) as i:
                column = first + i
                self._words.store(keys, at, column, x[row, column], missing[first])
        for first, end in [(f + identity, e + identity) for f, e in _runs(missing[identity:])]:
            with build.serial(end - first) as i:
                column = first + i
                self._words.store(keys, at, column, x[row, columns[column]], missing[first])
        for column, value in enumerate(self._words.last_columns, len(self._l.columns)):
            build.buffer_store(keys, tirx.const(value, self._words.dtype), [at, _int(column)])

    def _fill_row(self, keys: tirx.Buffer, at: Expr) -> None:
        with build.serial(self._width) as column:
            build.buffer_store(keys, tirx.const(0, self._words.dtype), [at, column])


def _runs(values: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield first and end of each run of equal values."""
    first = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[first]:
            yield first, at
            first = at


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")

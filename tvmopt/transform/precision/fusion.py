"""Predict which values a fused module stores to memory, before lowering.

``conv2d -> add -> relu -> conv2d`` stores ``{relu}``; the other values stay in registers. Mixed
precision chooses dtypes for stored values, so it needs this prediction.

The groups equal those of TVM's FuseOps. Operator patterns come from legalizing the module.
:func:`_fuse` follows ``graph_partitioner.cc``: fuse a node into its immediate post-dominator, in
three phases. FuseOps itself returns the groups, but does not tell which binding went where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tvm
from tvm import relax

from tvmopt.transform.legalize import legalize_map

ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, OUT_FUSABLE, TUPLE, OPAQUE = 0, 1, 2, 3, 4, 7, 8
_CALL_TIR = "relax.call_tir"


@dataclasses.dataclass
class Node:
    """One binding of ``main``, or one of its parameters.

    Attributes:
        var: The bound variable.
        value: The bound expression; None for a parameter.
        pattern: TVM's OpPatternKind.
        uses: Indices of nodes that it reads.
        users: Indices of nodes that read it.
        escapes: Whether the function returns it or a branch reads it.
        stored: Whether it is stored to memory.
    """

    var: relax.Var
    value: relax.Expr | None
    pattern: int
    uses: list[int]
    users: list[int]
    escapes: bool = False
    stored: bool = True


def dataflow(mod: tvm.IRModule) -> list[Node]:
    """Return the nodes of ``main`` in order, parameters first, with ``stored`` predicted."""
    main = mod["main"]
    patterns = _patterns(mod)
    nodes = [Node(param, None, OPAQUE, [], []) for param in main.params]
    index = {param: i for i, param in enumerate(main.params)}
    for block in main.body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            uses = sorted({index[v] for v in _read(value) if v in index})
            pattern = _pattern(value, patterns.get(len(nodes), OPAQUE))
            for use in uses:
                nodes[use].users.append(len(nodes))
            index[binding.var] = len(nodes)
            nodes.append(Node(binding.var, value, pattern, uses, []))
    for var in _read(main.body.body):
        if var in index:
            nodes[index[var]].escapes = True
    groups = _fuse(nodes)
    for i, node in enumerate(nodes):
        outside = any(groups[user] != groups[i] for user in node.users)
        node.stored = node.escapes or outside or not node.users
    return nodes


def _patterns(mod: tvm.IRModule) -> dict[int, int]:
    """Return the operator pattern of each binding of ``main``, by node index."""
    phases = [
        relax.transform.LegalizeOps(legalize_map()),
        relax.transform.AnnotateTIROpPattern(),
    ]
    legal = tvm.transform.Sequential(phases)(mod)
    # Legalization keeps the order and names of variables; it may insert bindings between them.
    after = [b for block in legal["main"].body.blocks for b in block.bindings]
    before = [b for block in mod["main"].body.blocks for b in block.bindings]
    found: dict[int, int] = {}
    cursor = 0
    for position, binding in enumerate(before, start=len(mod["main"].params)):
        name = binding.var.name
        at = next((i for i in range(cursor, len(after)) if after[i].var.name == name), None)
        if at is None:
            continue
        cursor = at + 1
        value = getattr(after[at], "value", None)
        if isinstance(value, relax.Call) and getattr(value.op, "name", "") == _CALL_TIR:
            attrs = legal[value.args[0]].attrs or {}
            found[position] = int(attrs.get("op_pattern", OPAQUE))
    return found


def _pattern(value: relax.Expr | None, legalised: int) -> int:
    if isinstance(value, relax.Tuple):
        return TUPLE
    if isinstance(value, relax.TupleGetItem):
        return INJECTIVE
    if isinstance(value, relax.Var | tvm.ir.GenericConst):
        return ELEMENTWISE
    return legalised


def _read(expr: relax.Expr | None) -> list[relax.Var]:
    """Return the variables that an expression reads, including reads in its branches."""
    found: list[relax.Var] = []
    if expr is not None:
        relax.analysis.post_order_visit(
            expr, lambda e: found.append(e) if isinstance(e, relax.Var) else None
        )
    return found


@dataclasses.dataclass
class _Dominator:
    parent: int | None
    pattern: int
    depth: int


def _fuse(nodes: list[Node]) -> list[int]:
    """Return the last node of each node's fusion group."""
    tree = _post_dominators(nodes)
    root = list(range(len(nodes)))
    # A group that contains a convolution keeps the convolution's pattern.
    pattern = [node.pattern for node in nodes]

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    def between(source: int, sink: int) -> set[int]:
        seen: set[int] = set()
        stack = list(nodes[source].users)
        while stack:
            i = stack.pop()
            if i not in seen:
                seen.add(i)
                stack += [] if i == sink else nodes[i].users
        return seen

    def commit(source: int, sink: int, allowed: Callable[[int, bool], bool]) -> None:
        path = between(source, sink)
        if not all(allowed(pattern[find(i)], i == sink) for i in path):
            return
        target = find(sink)
        for i in {source, *path}:
            child = find(i)
            if child != target:
                root[child] = target
                if pattern[child] == OUT_FUSABLE:
                    pattern[target] = max(pattern[target], OUT_FUSABLE)

    for phase in (0, 1):
        for i in range(len(nodes)):
            parent, edge = tree[i].parent, tree[i].pattern
            if pattern[i] == OPAQUE or parent is None or find(i) == find(parent):
                continue
            if pattern[parent] == TUPLE:
                continue
            if pattern[i] == OUT_FUSABLE:
                if phase == 0 and edge == ELEMENTWISE:
                    commit(i, parent, lambda kind, _: kind <= BROADCAST)
            elif pattern[i] <= BROADCAST:
                if edge <= REDUCTION:
                    commit(i, parent, _into_elementwise)
            elif pattern[i] in (INJECTIVE, TUPLE) and phase == 1:
                commit(i, parent, lambda kind, _: kind <= INJECTIVE)
    return [find(i) for i in range(len(nodes))]


def _into_elementwise(kind: int, is_sink: bool) -> bool:
    return kind <= (OUT_FUSABLE if is_sink else INJECTIVE)


def _post_dominators(nodes: list[Node]) -> list[_Dominator]:
    tree = [_Dominator(None, OPAQUE, 1) for _ in nodes]

    def meet(a: int | None, b: int | None, edge: int) -> tuple[int | None, int]:
        """Return the nearest common post-dominator, and the largest pattern on the paths to it."""
        while a != b:
            if a is None or b is None:
                return None, edge
            if tree[a].depth < tree[b].depth:
                a, b = b, a
            edge = max(edge, tree[a].pattern)
            a = tree[a].parent
        return a, edge

    for i in reversed(range(len(nodes))):
        node = nodes[i]
        if node.escapes or not node.users:
            continue
        parent: int | None = node.users[0]
        edge = nodes[node.users[0]].pattern
        for user in node.users[1:]:
            edge = max(edge, nodes[user].pattern)
            parent, edge = meet(parent, user, edge)
        depth = 1 if parent is None else tree[parent].depth + 1
        tree[i] = _Dominator(parent, edge, depth)
    return tree

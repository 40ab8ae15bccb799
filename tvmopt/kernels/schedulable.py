"""Tell the functions that can be scheduled: loop nests around element stores, of static shapes."""

from __future__ import annotations

from tvm import s_tir, tirx

_ITERATORS = (0, 2)  # tirx.IterVar.iter_type: data-parallel and reduction


def why_not_schedulable(func: tirx.PrimFunc, *, scalars: bool = False) -> str | None:
    """Return why ``func`` cannot be scheduled; None when it is a sequence of plain leaf blocks.

    A plain function has static non-zero shapes. Its root block holds only perfect loop nests, one
    loop per block axis, around blocks of element stores (no extern calls, no ``while``). Blocks of
    one element may lack loops, but at least one block must have a loop.

    Args:
        func: A TensorIR function.
        scalars: Whether to accept a function in which no block has a loop.

    Returns:
        The reason in one line, or None.
    """
    for param in func.params:
        if not tirx.is_buffer_var(param):
            return "takes a scalar parameter (symbolic shape)"
    if not isinstance(func.body, s_tir.SBlockRealize):
        return "no root block"
    root = func.body.block
    buffers = [*func.params, *root.alloc_buffers]
    for buffer in buffers:
        if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
            return "symbolic shape"
        if any(int(extent) == 0 for extent in buffer.shape):
            return "zero-sized dimension"
    body = root.body
    leaves = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if not scalars and not any(isinstance(leaf, tirx.For) for leaf in leaves):
        return "no loop (scalar)"
    return next((reason for leaf in leaves if (reason := _why_not_leaf(leaf))), None)


def _why_not_leaf(stmt: tirx.Stmt) -> str | None:
    loops: list[tirx.Var] = []
    while isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not isinstance(stmt.extent, tirx.IntImm):
            return "a loop that is not serial or whose extent is not constant"
        loops.append(stmt.loop_var)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize):
        return f"a {type(stmt).__name__} outside of any block"
    block = stmt.block
    pairs = zip(stmt.iter_values, loops, strict=False)
    one_each = len(stmt.iter_values) == len(loops) and all(v.same_as(x) for v, x in pairs)
    scalar = not loops and all(isinstance(v, tirx.IntImm) for v in stmt.iter_values)
    if not (one_each or scalar):
        return f"block {block.name_hint!r} does not have one loop an axis"
    if any(iv.iter_type not in _ITERATORS for iv in block.iter_vars):
        return f"block {block.name_hint!r} has an opaque axis"
    parts = block.body.seq if isinstance(block.body, tirx.SeqStmt) else [block.body]
    if not all(isinstance(part, (tirx.BufferStore, tirx.Bind)) for part in parts):
        return f"block {block.name_hint!r} is not made of element stores"
    return None

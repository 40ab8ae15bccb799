"""Give a function that was scheduled on views of its parameters their shapes again.

before -> after, for a parameter that its caller passes as an image::

    def f(A_rows: (950, 64), ...): use(A_rows)

    def f(A: (1, 25, 38, 64), ...):
        A_rows = decl_buffer((950, 64), data=A.data)
        use(A_rows)
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import tirx

from tvmopt.kernels.analysis import variables
from tvmopt.kernels.rewrite import with_root
from tvmopt.kernels.scheduled import REWRITTEN_ATTR

# Attribute around declarations and what follows; it has no meaning to TVM.
_VIEWS = "tvmopt.views"


def restore_shapes(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``scheduled`` with the shapes of the parameters of ``func``.

    Args:
        scheduled: A scheduled function; unchanged unless it has ``REWRITTEN_ATTR``.
        func: The function before scheduling.
    """
    if REWRITTEN_ATTR not in (scheduled.attrs or {}):
        return scheduled
    scheduled = scheduled.without_attr(REWRITTEN_ATTR)
    params, views = [], []
    for ours, theirs in zip(scheduled.params, func.params, strict=True):
        if not tirx.is_buffer_var(ours) or tvm_ffi.structural_equal(ours.shape, theirs.shape):
            params.append(ours)
            continue
        params.append(tirx.decl_buffer(theirs.shape, str(theirs.dtype), theirs.name))
        views.append(tirx.DeclBuffer(ours, data=params[-1].data))
    if not views:
        return scheduled
    viewed = with_root(scheduled, body=_with_views(scheduled.body.block.body, views))
    return tirx.PrimFunc(params, viewed.body, scheduled.ret_type, scheduled.attrs)


def _with_views(body: tirx.Stmt, views: Sequence[tirx.DeclBuffer]) -> tirx.Stmt:
    """Return ``body`` with ``views`` before their first use.

    They are one statement, since TVM splits weight packing off by the statements of the root block,
    each of which must have a block.
    """
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    viewed = {view.buffer for view in views}
    first = next(i for i, nest in enumerate(nests) if viewed & variables(nest))
    inner = tirx.AttrStmt(
        tirx.IntImm("int32", 0), _VIEWS, tirx.IntImm("int32", 1),
        tirx.SeqStmt([*views, *nests[first:]]),
    )  # fmt: skip
    return tirx.SeqStmt([*nests[:first], inner]) if first else inner

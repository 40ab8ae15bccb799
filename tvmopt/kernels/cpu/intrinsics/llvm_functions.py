"""LLVM IR functions inside a PrimFunc, for instructions that TensorIR cannot express.

A PrimFunc calls such a function with ``call_extern``; the pragma ``pragma_import_llvm`` around the
body holds its definition. All functions are small and ``alwaysinline``, so the library does not
contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tvm import ir, tirx

from tvmopt.kernels.rewrite import with_root

#: LLVM attributes of a pure function.
PURE = "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn memory(none)"


def with_llvm_functions(func: tirx.PrimFunc, sources: Iterable[str]) -> tirx.PrimFunc:
    """Return ``func`` with LLVM functions defined around its last stage.

    Only the last stage is wrapped, because prepacking blocks must stay direct children of the root.

    Args:
        func: A function with a root block.
        sources: LLVM IR modules as text, each with the definitions of its functions.
    """
    texts = list(sources)
    body = func.body.block.body
    last = body.seq[-1] if isinstance(body, tirx.SeqStmt) else body
    return map_stages(func, lambda s: import_llvm(s, texts) if s.same_as(last) else s)


def import_llvm(stmt: tirx.Stmt, sources: Iterable[str]) -> tirx.Stmt:
    """Return ``stmt`` inside the pragmas that define LLVM functions.

    Args:
        stmt: The statement that calls the functions.
        sources: LLVM IR modules as text, each with the definitions of its functions.
    """
    zero = tirx.const(0, "int32")
    for source in sources:
        stmt = tirx.AttrStmt(zero, "pragma_import_llvm", ir.StringImm(source), stmt)
    return stmt


def map_stages(func: tirx.PrimFunc, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.PrimFunc:
    """Return ``func`` with ``change`` applied to every statement of its root block.

    Args:
        func: A function with a root block.
        change: Returns the new statement for a statement.
    """
    body = func.body.block.body
    stages = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    stages = [change(stage) for stage in stages]
    return with_root(func, body=tirx.SeqStmt(stages) if len(stages) > 1 else stages[0])

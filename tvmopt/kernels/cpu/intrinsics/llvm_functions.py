"""Functions written in LLVM's own language, for what TensorIR cannot say.

A PrimFunc calls one with ``call_extern``; its definition travels in a pragma around the body. All
are small, inlined wherever they are called, and dropped from the library then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tvm import ir, s_tir, tirx

#: For functions of their arguments alone.
PURE = "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn memory(none)"


def with_llvm_functions(func: tirx.PrimFunc, sources: Iterable[str]) -> tirx.PrimFunc:
    """Define functions around the last stage of ``func``: what packs must stay outermost.

    Args:
        func: A function with a root block.
        sources: LLVM modules as text, each with the functions that it defines.
    """
    texts = list(sources)
    body = func.body.block.body
    last = body.seq[-1] if isinstance(body, tirx.SeqStmt) else body
    return map_stages(func, lambda s: import_llvm(s, texts) if s.same_as(last) else s)


def import_llvm(stmt: tirx.Stmt, sources: Iterable[str]) -> tirx.Stmt:
    """``stmt`` with functions defined around it.

    Args:
        stmt: What calls them.
        sources: LLVM modules as text, each with the functions that it defines.
    """
    zero = tirx.const(0, "int32")
    for source in sources:
        stmt = tirx.AttrStmt(zero, "pragma_import_llvm", ir.StringImm(source), stmt)
    return stmt


def map_stages(func: tirx.PrimFunc, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.PrimFunc:
    """``func`` with every statement of its root block replaced by what ``change`` makes of it.

    Args:
        func: A function with a root block.
        change: Gives the new statement.
    """
    realize = func.body
    root = realize.block
    stages = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stages = [change(stage) for stage in stages]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        tirx.SeqStmt(stages) if len(stages) > 1 else stages[0],
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return func.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, block))

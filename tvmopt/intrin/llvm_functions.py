"""Functions written in LLVM's own language, for what TensorIR cannot say.

A PrimFunc calls one with ``call_extern``; its definition travels in a pragma around the body. All
are small, inlined wherever they are called, and dropped from the library then.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import ir, s_tir, tirx

#: For functions of their arguments alone.
PURE = "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn memory(none)"


def with_llvm_functions(func: tirx.PrimFunc, sources: Iterable[str]) -> tirx.PrimFunc:
    """Define functions around the last stage of ``func``: what packs must stay outermost.

    Args:
        func: A function with a root block.
        sources: LLVM modules as text, each with the functions that it defines.
    """
    realize = func.body
    root = realize.block
    stages = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    zero = tirx.const(0, "int32")
    for source in sources:
        text = ir.StringImm(source)
        stages[-1] = tirx.AttrStmt(zero, "pragma_import_llvm", text, stages[-1])
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

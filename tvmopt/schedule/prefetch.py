"""Fetch the weight of a tile into L1 before it is needed.

The packed weight is read in one long run, which the hardware prefetcher brings into L2 only: where
other work shares the core's caches, a tile waits for L2 at every step of its reduction (2 to 15 %
of a product's time here). A step that fetches what a later one reads hides that.

LLVM takes its own ``llvm.prefetch`` for a read of any memory, and would store all sums of the tile
at every step; so the instruction is written out, in a function that touches no memory of ours.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from .analysis import substitute, variables
from .hint import Hint

#: Annotation of a loop of a reduction: bytes that each step fetches ahead of what it reads.
PREFETCH = "tvmopt.prefetch"

_LINE = 64
_ATTRIBUTES = (
    "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn "
    "memory(inaccessiblemem: readwrite)"
)


def annotate_prefetch(sch: s_tir.Schedule, loop: LoopRV, hint: Hint) -> None:
    """Have each step of ``loop`` fetch the weight as far ahead as ``hint`` says, on x86 alone."""
    if hint.prefetch and hint.arch.isa == "x86_64":
        sch.annotate(loop, PREFETCH, hint.prefetch)


def insert_prefetches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put the instructions into the loops that are annotated; ``func`` itself when none is.

    Before -> after, for a tile of two vectors of 16 and 1024 bytes ahead::

        for k in T.serial(512, annotations={"tvmopt.prefetch": 1024}):
            for m, c, v: acc[m, c * 16 + v] += A[m, k] * P[n, k, c * 16 + v]

        for k in range(512):
            T.call_extern("void", "tvmopt_prefetch_2", T.address_of(P[n, k + 8, 0]))
            for m, c, v: acc[m, c * 16 + v] += A[m, k] * P[n, k, c * 16 + v]
    """
    used: set[int] = set()

    def on_for(loop: tirx.For) -> tirx.For:
        if PREFETCH not in loop.annotations:
            return loop
        kept = {k: v for k, v in loop.annotations.items() if k != PREFETCH}
        found = _weight(loop, int(loop.annotations[PREFETCH]))
        body = loop.body
        if found is not None:
            address, lines = found
            used.add(lines)
            call = tirx.call_extern("void", _name(lines), address)
            body = tirx.SeqStmt([tirx.Evaluate(call), body])
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, kept
        )

    body = tvm_ffi.structural_map(func.body, (tirx.For, on_for), order="post")
    return func.with_body(_with_functions(body, sorted(used))) if used else func


def _weight(loop: tirx.For, ahead: int) -> tuple[ir.Expr, int] | None:
    """Where the weight of a later step begins, and how many cache lines a step reads of it."""
    inner: dict[tirx.Var, tirx.For] = {}
    stmt = loop.body
    while isinstance(stmt, tirx.For):
        inner[stmt.loop_var] = stmt
        stmt = stmt.body
    vectors = [v for v, f in inner.items() if f.kind == tirx.ForKind.VECTORIZED]
    if not vectors or not isinstance(stmt, s_tir.SBlockRealize):
        return None
    block = stmt.block
    assert isinstance(block.body, tirx.BufferStore)
    values = {iv.var: value for iv, value in zip(block.iter_vars, stmt.iter_values, strict=True)}
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(block.body.value, (ir.TensorLoad, loads.append), order="post")
    for load in loads:
        indices = [substitute(index, values) for index in load.indices]
        if load.source.same_as(block.body.buffer) or vectors[0] not in variables(indices[-1]):
            continue
        step = load.source.dtype.itemsize
        for var in variables(indices[-1]) & set(inner):
            step *= int(inner[var].extent)
        first: dict[tirx.Var, ir.Expr] = {var: tirx.const(0, "int64") for var in inner}
        first[loop.loop_var] = loop.loop_var + max(1, ahead // step)
        at = [substitute(index, first) for index in indices]
        return tirx.address_of(tirx.BufferLoad(load.source, at)), -(-step // _LINE)
    return None


def _name(lines: int) -> str:
    return f"tvmopt_prefetch_{lines}"


def _with_functions(body: tirx.Stmt, used: list[int]) -> tirx.Stmt:
    """Define the functions called, around the last stage: what packs must stay outermost."""
    root = body.block
    stages = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    zero = tirx.const(0, "int32")
    for lines in used:
        text = ir.StringImm(_function(lines))
        stages[-1] = tirx.AttrStmt(zero, "pragma_import_llvm", text, stages[-1])
    inner = tirx.SeqStmt(stages) if len(stages) > 1 else stages[0]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        inner,
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return s_tir.SBlockRealize(body.iter_values, body.predicate, block)


def _function(lines: int) -> str:
    """LLVM IR of a function that fetches ``lines`` cache lines from a pointer on."""
    code = "\\0A".join(f"prefetcht0 {_LINE * n}($0)" for n in range(lines))
    return (
        f"define void @{_name(lines)}(ptr %p) #0 {{\n"
        f'  call void asm sideeffect "{code}", "r"(ptr %p) #0\n'
        "  ret void\n"
        "}\n"
        f"attributes #0 = {{ {_ATTRIBUTES} }}\n"
    )

"""Software prefetch into L1 (``prefetcht0``): the packed weight, and what the epilogue accesses.

The packed weight is one contiguous stream, which the hardware prefetcher brings into L2 only. Where
other work shares the core's caches, the micro-kernel waits for L2 in every reduction step. This
takes 2 to 15 % of a GEMM's time. A prefetch some steps ahead hides the latency.

The epilogue of a register tile writes a few cache lines of each row, and reads as many of a
residual; the hardware prefetcher does not follow these strides. Where the reduction is short and
the output larger than L2, stores and loads that miss take up to half of a kernel's time. As in BLIS
(Van Zee and van de Geijn, ACM TOMS 2015), a prefetch before the reduction hides the latency.

LLVM treats ``llvm.prefetch`` as a read of any memory, and would store all accumulators in every
step. The instruction is therefore inline assembly, in a function that LLVM knows to access no
program-visible memory.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV

from tvmopt.device.cpu import CACHE_LINE_BYTES, CpuArch
from tvmopt.kernels.analysis import substitute, variables
from tvmopt.kernels.cpu.intrinsics.llvm_functions import with_llvm_functions

#: Annotation of a reduction loop: prefetch distance in bytes.
PREFETCH = "tvmopt.prefetch"
#: Annotation of the outermost loop of an epilogue: its operands are prefetched before the tile.
PREFETCH_EPILOGUE = "tvmopt.prefetch_epilogue"

_ATTRIBUTES = (
    "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn "
    "memory(inaccessiblemem: readwrite)"
)


def annotate_prefetch(sch: s_tir.Schedule, loop: LoopRV, distance: int, arch: CpuArch) -> None:
    """Annotate the reduction loop with the prefetch distance in bytes, if any; only on x86."""
    if distance and arch.isa == "x86_64":
        sch.annotate(loop, PREFETCH, distance)


def annotate_epilogue_prefetch(sch: s_tir.Schedule, loop: LoopRV, arch: CpuArch) -> None:
    """Annotate the outermost loop of an epilogue, to prefetch its operands; only on x86."""
    if arch.isa == "x86_64":
        sch.annotate(loop, PREFETCH_EPILOGUE, 1)


def insert_prefetches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert prefetches for the annotated loops; return ``func`` itself if there are none.

    Before -> after, for a tile of 6 rows x 2 vectors of 16, a prefetch distance of 1024 bytes and a
    residual ``X``::

        for k in T.serial(512, annotations={"tvmopt.prefetch": 1024}):
            for m, c, v: acc[m, c * 16 + v] += A[m, k] * P[n, k, c * 16 + v]
        for m in T.unroll(6, annotations={"tvmopt.prefetch_epilogue": 1}):
            for v in T.vectorized(32): Y[m, n * 32 + v] = acc[m, v] + X[m, n * 32 + v]

        for m in T.unroll(6):
            T.call_extern("void", "tvmopt_prefetch_2", T.address_of(Y[m, n * 32]))
            T.call_extern("void", "tvmopt_prefetch_2", T.address_of(X[m, n * 32]))
        for k in range(512):
            T.call_extern("void", "tvmopt_prefetch_2", T.address_of(P[n, k + 8, 0]))
            for m, c, v: acc[m, c * 16 + v] += A[m, k] * P[n, k, c * 16 + v]
        for m in T.unroll(6):
            for v in T.vectorized(32): Y[m, n * 32 + v] = acc[m, v] + X[m, n * 32 + v]
    """
    used: set[int] = set()

    def prefetch(address: ir.Expr, lines: int) -> tirx.Stmt:
        used.add(lines)
        return tirx.Evaluate(tirx.call_extern("void", prefetch_name(lines), address))

    def on_for(loop: tirx.For) -> tirx.For:
        if PREFETCH not in loop.annotations:
            return loop
        found = _weight(loop, int(loop.annotations[PREFETCH]))
        body = loop.body if found is None else tirx.SeqStmt([prefetch(*found), loop.body])
        return _without(PREFETCH, loop, body)

    def on_sequence(sequence: tirx.SeqStmt) -> tirx.SeqStmt:
        *before, epilogue = sequence.seq
        if not isinstance(epilogue, tirx.For) or PREFETCH_EPILOGUE not in epilogue.annotations:
            return sequence
        calls = [prefetch(*operand) for operand in _epilogue_operands(epilogue)]
        rows = [_for_each_row(calls, epilogue)] if calls else []
        plain = _without(PREFETCH_EPILOGUE, epilogue, epilogue.body)
        return tirx.SeqStmt([*rows, *before, plain])

    body = tvm_ffi.structural_map(
        func.body, [(tirx.For, on_for), (tirx.SeqStmt, on_sequence)], order="post"
    )
    if not used:
        return func
    return with_llvm_functions(func.with_body(body), [prefetch_function(n) for n in sorted(used)])


def _without(annotation: str, loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """Return ``loop`` with another body and without one of its annotations."""
    kept = {key: value for key, value in loop.annotations.items() if key != annotation}
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, kept
    )


def _nest(stmt: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    """Return the loops of a perfect nest, outermost first, and the statement in them."""
    loops: list[tirx.For] = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _weight(loop: tirx.For, ahead: int) -> tuple[ir.Expr, int] | None:
    """Return the prefetch address of the weight and the cache lines per step; or None."""
    loops, stmt = _nest(loop.body)
    if not isinstance(stmt, s_tir.SBlockRealize):
        return None
    inner = {one.loop_var: one for one in loops}
    block = stmt.block
    values = {iv.var: value for iv, value in zip(block.iter_vars, stmt.iter_values, strict=True)}
    written = [region.source for region in block.writes]
    vectors = {v for v, f in inner.items() if f.kind == tirx.ForKind.VECTORIZED}
    for read in block.reads:
        if any(read.source.same_as(buffer) for buffer in written):
            continue
        indices = [substitute(ran.min, values) for ran in read.region]
        # Elements per iteration: several if a tensor intrinsic replaced the inner loops.
        count = math.prod(int(ran.extent) for ran in read.region)
        whole = len(read.region) > 1 and int(read.region[-2].extent) > 1
        if not whole and not vectors & variables(indices[-1]):
            continue
        step = read.source.dtype.itemsize * count
        for var in set().union(*map(variables, indices[-2:])) & set(inner):
            step *= int(inner[var].extent)
        first: dict[tirx.Var, ir.Expr] = {var: tirx.const(0, "int64") for var in inner}
        first[loop.loop_var] = loop.loop_var + max(1, ahead // step)
        at = [substitute(index, first) for index in indices]
        return tirx.address_of(tirx.BufferLoad(read.source, at)), -(-step // CACHE_LINE_BYTES)
    return None


def _epilogue_operands(epilogue: tirx.For) -> list[tuple[ir.Expr, int]]:
    """Return the prefetch address and the cache lines of a row: of the output, and of residuals.

    The row is of the register tile. A residual is read at the indices of the output.

    Returns:
        Address and number of lines of each; empty where the loops are no epilogue in vectors.
    """
    loops, realize = _nest(epilogue)
    vector = loops[-1]
    if not isinstance(realize, s_tir.SBlockRealize) or vector.kind != tirx.ForKind.VECTORIZED:
        return []
    block = realize.block
    values = {iv.var: value for iv, value in zip(block.iter_vars, realize.iter_values, strict=True)}
    first = {vector.loop_var: tirx.const(0, "int64")}
    output = [ran.min for ran in block.writes[0].region]
    found: list[tuple[ir.Expr, int]] = []
    for region in (*block.writes, *block.reads):
        indices = [ran.min for ran in region.region]
        if tvm_ffi.structural_equal(indices, output, map_free_vars=False):
            at = [substitute(substitute(index, values), first) for index in indices]
            size = int(vector.extent) * region.source.dtype.itemsize
            address = tirx.address_of(tirx.BufferLoad(region.source, at))
            found.append((address, -(-size // CACHE_LINE_BYTES)))
    return found


def _for_each_row(calls: list[tirx.Stmt], epilogue: tirx.For) -> tirx.Stmt:
    """Return ``calls`` in copies of the loops of ``epilogue``, without the vectorised one."""
    body = tirx.SeqStmt(calls) if len(calls) > 1 else calls[0]
    for loop in reversed(_nest(epilogue)[0][:-1]):
        var = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty.dtype))
        body = substitute(body, {loop.loop_var: var})
        body = tirx.For(var, loop.min, loop.extent, loop.kind, body)
    return body


def prefetch_name(lines: int) -> str:
    """Return the name of :func:`prefetch_function`."""
    return f"tvmopt_prefetch_{lines}"


def prefetch_function(lines: int) -> str:
    """Return the LLVM IR of a function that prefetches ``lines`` cache lines from a pointer."""
    code = "\\0A".join(f"prefetcht0 {CACHE_LINE_BYTES * n}($0)" for n in range(lines))
    return (
        f"define void @{prefetch_name(lines)}(ptr %p) #0 {{\n"
        f'  call void asm sideeffect "{code}", "r"(ptr %p) #0\n'
        "  ret void\n"
        "}\n"
        f"attributes #0 = {{ {_ATTRIBUTES} }}\n"
    )

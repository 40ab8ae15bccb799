"""Software prefetch of the packed weight into L1 (``prefetcht0``).

The packed weight is one contiguous stream, which the hardware prefetcher brings into L2 only. Where
other work shares the core's caches, the micro-kernel waits for L2 in every reduction step. This
takes 2 to 15 % of a GEMM's time. A prefetch some steps ahead hides the latency.

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

_ATTRIBUTES = (
    "alwaysinline mustprogress nocallback nofree nosync nounwind willreturn "
    "memory(inaccessiblemem: readwrite)"
)


def annotate_prefetch(sch: s_tir.Schedule, loop: LoopRV, distance: int, arch: CpuArch) -> None:
    """Annotate the reduction loop with the prefetch distance in bytes, if any; only on x86."""
    if distance and arch.isa == "x86_64":
        sch.annotate(loop, PREFETCH, distance)


def insert_prefetches(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert prefetches into the annotated loops; return ``func`` itself if there are none.

    Before -> after, for a tile of two vectors of 16 and a prefetch distance of 1024 bytes::

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
            call = tirx.call_extern("void", prefetch_name(lines), address)
            body = tirx.SeqStmt([tirx.Evaluate(call), body])
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, kept
        )

    body = tvm_ffi.structural_map(func.body, (tirx.For, on_for), order="post")
    if not used:
        return func
    return with_llvm_functions(func.with_body(body), [prefetch_function(n) for n in sorted(used)])


def _weight(loop: tirx.For, ahead: int) -> tuple[ir.Expr, int] | None:
    """Return the prefetch address of the weight and the cache lines per step; or None."""
    inner: dict[tirx.Var, tirx.For] = {}
    stmt = loop.body
    while isinstance(stmt, tirx.For):
        inner[stmt.loop_var] = stmt
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize):
        return None
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

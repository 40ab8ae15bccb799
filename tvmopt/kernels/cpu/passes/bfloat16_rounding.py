"""Round vectors to bfloat16 with the AVX512-BF16 conversion instruction.

Integer rounding takes nine instructions per vector: 10 % of the latency of networks with few
channels. AVX512-BF16 has one instruction for it. TVM does not vectorise extern calls, so a
vectorised loop is split in two: the first computes into a register buffer, the second statement
rounds and stores that buffer.

before -> after::

    for v in T.vectorized(32): Y[m, v] = Cast("bfloat16", S[m, v] + bias[v])

    for v in T.vectorized(32): t[v] = S[m, v] + bias[v]
    Y[m, 0:32] = T.reinterpret("bfloat16x32", T.call_extern("tvmopt_bfloat16_32", t[0:32]))

Denormals are flushed to zero, as in ``vdpbf16ps``.
"""

from __future__ import annotations

from collections.abc import Collection

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import row_major_offset, substitute, variables
from tvmopt.kernels.cpu.intrinsics.llvm_functions import PURE, with_llvm_functions
from tvmopt.kernels.rewrite import with_root

#: Annotation of a root block: round bfloat16 vectors with the CPU's instruction.
NATIVE = "tvmopt.native_bfloat16"
_FEATURE = "avx512bf16"
# Shortest vector. LLVM pads the last register of one that is no multiple of 16, such as the 34
# columns of a tile: it rounds the register whole, and stores its last lanes alone.
_LEAST_LANES = 4


def annotate_rounding(sch: s_tir.Schedule, arch: CpuArch) -> None:
    """Annotate ``sch`` for :func:`round_natively`, if ``arch`` supports it and bfloat16 is used."""
    params = sch.mod["main"].params
    narrow = any(tirx.is_buffer_var(p) and str(p.dtype) == "bfloat16" for p in params)
    if narrow and has_rounding(arch):
        sch.annotate(sch.get_sblock("root"), NATIVE, 1)


def has_rounding(arch: CpuArch) -> bool:
    """Return whether ``arch`` has the conversion instruction."""
    return arch.isa == "x86_64" and _FEATURE in arch.features()


def rounded_vector(value: ir.Expr, lanes: int) -> ir.Expr:
    """Return a vector of float32 rounded by :func:`rounding_function`, as bfloat16."""
    bits = tirx.call_extern(f"uint16x{lanes}", _name(lanes), value)
    return tirx.reinterpret(f"bfloat16x{lanes}", bits)


def round_natively(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split the vectorised loops that store bfloat16, in a function with the annotation."""
    root = func.body.block if isinstance(func.body, s_tir.SBlockRealize) else None
    if root is None or NATIVE not in root.annotations:
        return func
    made: list[tirx.Var] = []
    params = set(func.params)

    def on_for(loop: tirx.For) -> tirx.Stmt:
        parts = _parted(loop, params)
        if parts is None:
            return loop
        buffer, stmt = parts
        made.append(buffer)
        return stmt

    body = tvm_ffi.structural_map(root.body, (tirx.For, on_for), order="post")
    kept = {key: value for key, value in root.annotations.items() if key != NATIVE}
    func = with_root(func, body=body, alloc_buffers=[*root.alloc_buffers, *made], annotations=kept)
    sizes = sorted({int(buffer.shape[0]) for buffer in made})
    return with_llvm_functions(func, [rounding_function(n) for n in sizes]) if sizes else func


def _parted(loop: tirx.For, params: Collection[tirx.Var]) -> tuple[tirx.Var, tirx.Stmt] | None:
    """Split a vectorised loop that rounds; return register buffer and statements, or None."""
    realize = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, s_tir.SBlockRealize):
        return None
    block, store = realize.block, realize.block.body
    length = int(loop.extent)
    if length < _LEAST_LANES or not isinstance(store, tirx.BufferStore) or block.init is not None:
        return None
    value = store.value
    if str(store.buffer.dtype) != "bfloat16" or not isinstance(value, tirx.Cast):
        return None
    predicate = _for_all_lanes(realize.predicate, loop)
    if str(value.value.ty.dtype) != "float32" or loop.loop_var in variables(predicate):
        return None
    if not _is_contiguous(realize, loop, params):
        return None
    *outer, last = store.indices
    registers = tirx.decl_buffer((length,), "float32", "rounded", scope="local")
    dtype = loop.loop_var.ty.dtype
    lane = tirx.Var("lane", str(dtype))
    lanes = tirx.IterVar(ir.Range(0, loop.extent), lane, block.iter_vars[0].iter_type)
    computed = s_tir.SBlock(
        [*block.iter_vars, lanes],
        block.reads,
        [tirx.BufferRegion(registers, [ir.Range.from_min_extent(lane, 1)])],
        f"{block.name_hint}_wide",
        tirx.BufferStore(registers, value.value, [lane]),
        None,
        [],
        block.match_buffers,
        block.annotations,
    )
    first = tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        s_tir.SBlockRealize([*realize.iter_values, loop.loop_var], predicate, computed),
        loop.thread_binding,
        loop.annotations,
    )
    zero = tirx.const(0, str(dtype))
    start = [substitute(v, {loop.loop_var: zero}) for v in realize.iter_values]
    wide = tirx.BufferLoad(registers, [tirx.Ramp(zero, tirx.const(1, str(dtype)), length)])
    one = tirx.const(1, str(last.ty.dtype))
    stored = s_tir.SBlock(
        block.iter_vars,
        [tirx.BufferRegion(registers, [ir.Range(0, length)])],
        [
            tirx.BufferRegion(
                store.buffer,
                [
                    *(ir.Range.from_min_extent(index, 1) for index in outer),
                    ir.Range.from_min_extent(last, length),
                ],
            )
        ],
        block.name_hint,
        tirx.BufferStore(
            store.buffer,
            rounded_vector(wide, length),
            [*outer, tirx.Ramp(last, one, length)],
        ),
    )
    second = s_tir.SBlockRealize(start, predicate, _renewed(stored))
    return registers, tirx.SeqStmt([first, second])


def _is_contiguous(
    realize: s_tir.SBlockRealize, loop: tirx.For, params: Collection[tirx.Var]
) -> bool:
    """Return whether the iterations of ``loop`` store adjacent elements.

    The axes of a block may be fused: ``v // 1536`` and ``v % 1536`` with ``v = vo * 64 + vi``. A
    vector that continues in the next row needs one of ``params``: the region of another buffer
    would end behind its last column.
    """
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    iterators = [iv.var for iv in realize.block.iter_vars]
    values = dict(zip(iterators, map(analyzer.simplify, realize.iter_values), strict=True))
    store = realize.block.body
    indices = [substitute(index, values) for index in store.indices]
    *outer, last = map(analyzer.simplify, indices)
    if not any(loop.loop_var in variables(index) for index in outer):
        return _steps(last, loop.loop_var)
    if store.buffer not in params:
        return False
    offset = row_major_offset(indices, store.buffer.shape)
    return _steps(analyzer.simplify(offset), loop.loop_var)


def _for_all_lanes(predicate: ir.Expr, loop: tirx.For) -> ir.Expr:
    """Return ``predicate`` without the loop's variable if it is the same in all iterations.

    ``no * 32 + vo * 16 + vi < 240`` is ``no * 2 + vo < 15`` for every ``vi`` below 16.
    """
    analyzer = sym.Analyzer()
    analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    return analyzer.simplify(predicate)


def _steps(expr: ir.Expr, var: tirx.Var) -> bool:
    """Return whether ``expr`` has unit stride in ``var``."""
    dtype = str(var.ty.dtype)
    moved = substitute(expr, {var: var + tirx.const(1, dtype)})
    return bool(sym.Analyzer().can_prove_equal(moved - expr, tirx.const(1, str(expr.ty.dtype))))


def _renewed(block: s_tir.SBlock) -> s_tir.SBlock:
    """Return a copy of ``block`` with fresh iterators; two blocks may not share them."""
    fresh = {iv.var: tirx.Var(iv.var.name, str(iv.var.ty.dtype)) for iv in block.iter_vars}
    return tvm_ffi.structural_map(block, (tirx.Var, lambda var: fresh.get(var, var)), order="post")


def _name(lanes: int) -> str:
    return f"tvmopt_bfloat16_{lanes}"


def rounding_function(lanes: int) -> str:
    """Return the LLVM IR of a function that rounds ``lanes`` float32 to bfloat16."""
    return f"""
define linkonce_odr <{lanes} x i16> @{_name(lanes)}(<{lanes} x float> %x) #0 {{
  %y = fptrunc <{lanes} x float> %x to <{lanes} x bfloat>
  %z = bitcast <{lanes} x bfloat> %y to <{lanes} x i16>
  ret <{lanes} x i16> %z
}}

attributes #0 = {{ {PURE} }}
"""

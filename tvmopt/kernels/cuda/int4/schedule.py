"""Emit the int4 GEMV kernel with tensor cores: memory-bound, not issue-bound."""

from __future__ import annotations

import dataclasses

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmopt.kernels.analysis import substitute
from tvmopt.kernels.cuda.elementwise.copy import bound
from tvmopt.kernels.cuda.int4.activation import MOST_NORM_WARPS
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.int4.form import MOST_X_BYTES, Int4Form, prepare_int4
from tvmopt.kernels.cuda.int4.source import STAGE, TILE, int4_source
from tvmopt.kernels.cuda.toolchain.dependent_launch import LEAST_CAPABILITY
from tvmopt.kernels.scheduled import FREE_ATTR
from tvmopt.kernels.workload import Refusal

# Most shared memory of the scales, in bytes; larger ones stay in global memory.
_MOST_SCALES = 48 * 1024


@dataclasses.dataclass(frozen=True)
class Int4Layout:
    """Layout of a block's shared memory, in bytes from its start.

    Attributes:
        scales: Offset of the scales, after the activation; unused when they stay in global memory.
        ring: Offset of the ring of cp.async stages, after the scales.
        size: Total size.
        x_shared: Whether the activation is in shared memory.
        s_shared: Whether the scales are in shared memory.
        s_pitch: Row pitch of the scales, in elements.
    """

    scales: int
    ring: int
    size: int
    x_shared: bool
    s_shared: bool
    s_pitch: int


def int4_layout(form: Int4Form, config: Int4Config) -> Int4Layout:
    """Return the shared-memory layout of the kernel that ``config`` configures."""
    block, share = config.tile, config.reduce_warps
    warps = block // config.warp_tile * share
    stages = -(-form.depth // STAGE)
    x_shared = form.x_bytes <= MOST_X_BYTES
    groups = form.depth // form.group
    pitch = groups + 2 if groups % 4 == 0 else groups  # neighbouring rows use different banks
    scales = -(-2 * block * pitch // 16) * 16
    s_shared = form.scales is not None and groups % 2 == 0 and scales <= _MOST_SCALES
    at = form.x_bytes if x_shared else 0
    ring = at + (scales if s_shared else 0)
    size = ring + warps * min(config.stages, -(-stages // share)) * config.warp_tile * STAGE // 2
    sums = 4 * share * block * form.batch
    return Int4Layout(at, ring, max(size, sums), x_shared, s_shared, pitch)


NAME = "gpu_int4"


def emit(func: tirx.PrimFunc, config: Int4Config) -> tirx.PrimFunc | Refusal:
    """Emit the kernel of the int4 GEMV ``func``.

    Before -> after, with 8 warps that share 16 rows::

        for n: for k: y[n] += X[k] * ((W[n, k // 8] >> (k % 8 * 4)) & 15 - 8) * S[n, k // 128]

        for b in blockIdx.x, t in threadIdx.x:
            tvmopt_int4_...(X, W, S, F, shared, total, b)    (CUDA, generated)
            if t < 16 and b * 16 + t < N: Y[b * 16 + t] = total[0]

    ``F`` are the factors of RMSNorm. With two parts, ``total`` holds the accumulators of two rows.
    """
    form = prepare_int4(func)
    if form is None or config.arch.sm < 80:
        return Refusal("not an int4 GEMV for a GPU with tensor cores")
    if not _fits(form, config):
        return Refusal("tiles, warps and stages do not fit")
    layout = int4_layout(form, config)
    if layout.size > config.arch.smem_bytes:
        return Refusal(f"{layout.size} bytes of shared memory are too many")
    block, warps = config.tile, config.tile // config.warp_tile * config.reduce_warps
    numbers = {
        "batch": form.batch, "rows": form.rows, "depth": form.depth, "group": form.group,
        "tiles": config.warp_tile // TILE, "share": config.reduce_warps, "deep": config.stages,
        "block": block, "parts": form.parts, "scaled": int(form.scales is not None),
        "unroll": 2,
        "x_shared": int(layout.x_shared), "s_shared": int(layout.s_shared),
        "s_pitch": layout.s_pitch, "s_at": layout.scales, "ring_at": layout.ring,
    }  # fmt: skip
    waits = config.arch.sm >= LEAST_CAPABILITY and _is_constant(func, form)
    name, source = int4_source(numbers, form.offset, waits, _norm(form))
    at, thread = (tirx.Var(n, ir.PrimType("int32")) for n in ("block", "thread"))
    shared = tirx.decl_buffer((layout.size,), "uint8", "shared", scope="shared.dyn")
    total = tirx.decl_buffer((form.parts,), "float32", "total", scope="local")
    scales = form.words if form.scales is None else form.scales
    factors = None if form.norm is None else form.norm.weight
    factors = form.words if factors is None else factors
    pointers = [form.x, form.words, scales, factors, shared, total]
    call = cuda_func_call(name, *(p.data for p in pointers), at, source_code=source)
    own = block // form.parts
    column = at * own + tirx.floormod(thread, own)
    store = _stored(form, total, tirx.floordiv(thread, own), column)
    inside = tirx.all(thread < own * form.batch, column < form.columns)
    body: tirx.Stmt = tirx.SeqStmt(
        [
            tirx.AllocBuffer(shared),
            tirx.AllocBuffer(total),
            tirx.Evaluate(call),
            tirx.IfThenElse(inside, store, None),
        ]
    )
    body = bound(thread, "threadIdx.x", 32 * warps, body)
    return func.with_body(bound(at, "blockIdx.x", -(-form.columns // own), body))


def _norm(form: Int4Form) -> tuple[str, bool, float] | None:
    """Return what the source of RMSNorm depends on."""
    if form.norm is None:
        return None
    dtype = "float" if str(form.x.dtype) == "float32" else "half"
    return dtype, form.norm.weight is not None, form.norm.epsilon


def _is_constant(func: tirx.PrimFunc, form: Int4Form) -> bool:
    """Whether lowering has marked weight, scales and factors as constants; none is written."""
    free = (func.attrs or {}).get(FREE_ATTR) or []
    constants = [func.params[int(at)] for at in free]
    factors = None if form.norm is None else form.norm.weight
    return all(
        buffer is None or any(buffer.same_as(constant) for constant in constants)
        for buffer in (form.words, form.scales, factors)
    )


def _fits(form: Int4Form, config: Int4Config) -> bool:
    """Whether the numbers of ``config`` make a kernel for ``form``."""
    if not 2 <= config.stages <= 8:
        return False
    block, warp, share = config.tile, config.warp_tile, config.reduce_warps
    if warp not in (TILE, 2 * TILE) or block % warp or block % (TILE * form.parts) or share < 1:
        return False
    threads = 32 * share * block // warp
    if form.norm is not None and threads > 32 * MOST_NORM_WARPS:
        return False
    return threads <= 1024 and block // form.parts * form.batch <= threads


def _stored(form: Int4Form, total: tirx.Buffer, row: ir.Expr, column: ir.Expr) -> tirx.BufferStore:
    """Return ``form.store`` of the accumulators ``total`` at ``row`` and ``column``.

    A load at ``n + rows / 2`` reads the accumulator of the second part.
    """

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        if not load.source.same_as(form.total):
            return load
        return total[int(any(isinstance(index, tirx.Add) for index in load.indices))]

    value = tvm_ffi.structural_map(form.store.value, (ir.TensorLoad, on_load), order="post")
    places = {form.column: column.astype(str(form.column.ty.dtype))}
    if form.row is not None:
        places[form.row] = row.astype(str(form.row.ty.dtype))
    indices = [substitute(i, places) for i in form.store.indices]
    return tirx.BufferStore(form.result, substitute(value, places), indices)

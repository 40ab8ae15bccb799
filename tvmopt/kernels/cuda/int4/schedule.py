"""Emit the int4 GEMV kernel with tensor cores: memory-bound, not issue-bound."""

from __future__ import annotations

import dataclasses

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmopt.kernels.analysis import substitute
from tvmopt.kernels.cuda.elementwise.copy import bound
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.int4.form import Int4Form, prepare_int4
from tvmopt.kernels.cuda.int4.source import STAGE, TILE, int4_source
from tvmopt.kernels.cuda.toolchain.dependent_launch import LEAST_CAPABILITY
from tvmopt.kernels.scheduled import FREE_ATTR
from tvmopt.kernels.workload import Refusal

# Most shared memory of the activation and of the scales, in bytes; larger ones stay in global.
_MOST_X, _MOST_SCALES = 64 * 1024, 48 * 1024


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
    x = 16 * form.batch * (stages * 32 + 4)
    x_shared = x <= _MOST_X
    groups = form.depth // form.group
    pitch = groups + 2 if groups % 4 == 0 else groups  # neighbouring rows use different banks
    scales = -(-2 * block * pitch // 16) * 16
    s_shared = form.scales is not None and groups % 2 == 0 and scales <= _MOST_SCALES
    at = x if x_shared else 0
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
            total = tvmopt_int4_...(X, W, S, shared, b)    (CUDA, generated)
            if t < 16 and b * 16 + t < N: Y[b * 16 + t] = total
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
        "block": block, "scaled": int(form.scales is not None),
        "unroll": 2,
        "x_shared": int(layout.x_shared), "s_shared": int(layout.s_shared),
        "s_pitch": layout.s_pitch, "s_at": layout.scales, "ring_at": layout.ring,
    }  # fmt: skip
    waits = config.arch.sm >= LEAST_CAPABILITY and _is_constant(func, form)
    name, source = int4_source(numbers, form.offset, waits)
    at, thread = (tirx.Var(n, ir.PrimType("int32")) for n in ("block", "thread"))
    shared = tirx.decl_buffer((layout.size,), "uint8", "shared", scope="shared.dyn")
    total = tirx.decl_buffer((1,), "float32", "total", scope="local")
    scales = form.words if form.scales is None else form.scales
    pointers = [form.x.data, form.words.data, scales.data, shared.data]
    call = cuda_func_call(name, *pointers, at, source_code=source, return_type="float32")
    column = at * block + tirx.floormod(thread, block)
    store = _stored(form, total, tirx.floordiv(thread, block), column)
    inside = tirx.all(thread < block * form.batch, column < form.rows)
    body: tirx.Stmt = tirx.SeqStmt(
        [
            tirx.AllocBuffer(shared),
            tirx.AllocBuffer(total),
            tirx.BufferStore(total, call, [tirx.const(0, "int32")]),
            tirx.IfThenElse(inside, store, None),
        ]
    )
    body = bound(thread, "threadIdx.x", 32 * warps, body)
    return func.with_body(bound(at, "blockIdx.x", -(-form.rows // block), body))


def _is_constant(func: tirx.PrimFunc, form: Int4Form) -> bool:
    """Whether lowering has marked weight and scales as constants, which no kernel writes."""
    free = (func.attrs or {}).get(FREE_ATTR) or []
    constants = [func.params[int(at)] for at in free]
    return all(
        buffer is None or any(buffer.same_as(constant) for constant in constants)
        for buffer in (form.words, form.scales)
    )


def _fits(form: Int4Form, config: Int4Config) -> bool:
    """Whether the numbers of ``config`` make a kernel for ``form``."""
    if not 2 <= config.stages <= 8:
        return False
    block, warp, share = config.tile, config.warp_tile, config.reduce_warps
    if warp not in (TILE, 2 * TILE) or block % warp or share < 1:
        return False
    threads = 32 * share * block // warp
    return threads <= 1024 and block * form.batch <= threads


def _stored(form: Int4Form, total: tirx.Buffer, row: ir.Expr, column: ir.Expr) -> tirx.BufferStore:
    """Return ``form.store`` of the accumulator ``total`` at ``row`` and ``column``."""

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        return total[0] if load.source.same_as(form.total) else load

    value = tvm_ffi.structural_map(form.store.value, (ir.TensorLoad, on_load), order="post")
    places = {form.column: column.astype(str(form.column.ty.dtype))}
    if form.row is not None:
        places[form.row] = row.astype(str(form.row.ty.dtype))
    indices = [substitute(i, places) for i in form.store.indices]
    return tirx.BufferStore(form.result, substitute(value, places), indices)

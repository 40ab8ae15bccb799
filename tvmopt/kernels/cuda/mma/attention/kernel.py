"""The PrimFunc of fused attention with mma.sync: one kernel, or two with split keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AXES, AttentionProblem, MaskedBy, causal_offset
from tvmopt.kernels.cuda.attention_prim_func import attention_prim_func
from tvmopt.kernels.cuda.common.head_groups import heads_of_group
from tvmopt.kernels.cuda.hopper.emit import device_entry
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.mma.attention.config import (
    ATTENTION,
    REDUCTION_THREADS,
    MmaAttentionConfig,
    rows_of,
)
from tvmopt.kernels.cuda.mma.attention.output import reduction_source
from tvmopt.kernels.cuda.mma.attention.source import attention_source
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before
from tvmopt.kernels.workload import Refusal

_LOG2_E = math.log2(math.e)
# CUDA type in memory of an element of the mask, and its value in float32.
_MASKS = {
    "": ("unsigned char", "0.0f"),
    "bool": ("unsigned char", "0.0f"),
    "float32": ("float", "one"),
    "float16": ("unsigned short", "__half2float(__ushort_as_half(one))"),
    "bfloat16": ("unsigned short", "__uint_as_float(static_cast<unsigned int>(one) << 16)"),
}


def mma_attention(
    problem: AttentionProblem, config: MmaAttentionConfig, name: str | None = "main"
) -> tirx.PrimFunc | Refusal:
    """Emit the kernel: a PrimFunc of Q, K, V, [mask], output (:meth:`AttentionProblem.shapes`).

    Args:
        problem: Shapes, dtypes, masks.
        config: Warps, tile, ring, splits.
        name: Global symbol of the PrimFunc; None for a private one.

    Returns:
        A TIRx PrimFunc (``tir_pipeline="tirx"``); a refusal where ``config`` does not fit.
    """

    def emit(of: Parameters, mask: tirx.Buffer | None) -> None:
        _body(problem, config, of, mask)

    return attention_prim_func(problem, config, ATTENTION, name, emit)


def _body(
    p: AttentionProblem, c: MmaAttentionConfig, of: Parameters, mask_buffer: tirx.Buffer | None
) -> None:
    q, k, v = (
        _start(buffer, head, axes)
        for buffer, head, axes in zip(
            (of.a, of.b, of.inputs[0]), p.first_heads, (p.q_axes, p.k_axes, p.v_axes), strict=True
        )
    )
    out = _start(of.out)
    mask = q if mask_buffer is None else _start(mask_buffer)
    fields = _fields(p, c)
    lines = p.batch * p.kv_heads * rows_of(p)
    partial = stats = out
    if c.split_k > 1:
        # One workspace: partial outputs, then a maximum and a sum of each of their rows.
        size = c.split_k * lines
        workspace = build.alloc_buffer((size * (p.value_size + 2),), "float32", scope="global")
        partial, stats = workspace.ptr_to([0]), workspace.ptr_to([size * p.value_size])
    with device_entry():
        T.cta_id([p.batch * p.kv_heads * c.tiles(p) * c.split_k])
        T.thread_id([32 * c.warps])
        pool = SMEMPool()
        memory = pool.alloc((c.smem_bytes(p),), "uint8", align=128)
        pool.commit()
        _call(attention_source(fields, p.dtype), c, q, k, v, mask, out, partial, stats,
              memory.ptr_to([0]))  # fmt: skip
    if c.split_k > 1:
        with device_entry():
            T.cta_id([-(-lines * (p.value_size // 4) // REDUCTION_THREADS)])
            T.thread_id([REDUCTION_THREADS])
            _call(reduction_source(fields, p.dtype), c, partial, stats, out)


def _call(function: tuple[str, str], config: MmaAttentionConfig, *arguments: Expr) -> None:
    """Emit a call of a device function; on Hopper after the wait of a dependent launch."""
    if config.arch.sm >= 90:
        build.evaluate(wait_for_kernel_before())
    name, source = function
    build.evaluate(T.cuda.func_call(name, *arguments, source_code=source))


def _start(buffer: tirx.Buffer, head: int = 0, axes: str = AXES) -> Expr:
    """Return a pointer to the first element of a head of a tensor with these axes."""
    return buffer.ptr_to([head if axis == "h" else 0 for axis in axes])


def _fields(p: AttentionProblem, c: MmaAttentionConfig) -> dict[str, object]:
    """Return the values of the source's placeholders."""
    causal, shared = p.causal is not MaskedBy.NOTHING, p.heads // p.kv_heads
    additive = p.mask_shape is not None and p.mask_dtype != "bool"
    mask_type, mask_value = _MASKS[p.mask_dtype if p.mask_shape is not None else ""]
    heads = p.batch * p.kv_heads
    fields: dict[str, object] = {
        "row_warps": c.row_warps, "row_tiles": c.row_tiles, "key_warps": c.key_warps,
        "tile_keys": c.tile_keys, "stages": c.stages, "splits": c.split_k,
        "query_registers": _bool(c.query_registers), "batch": p.batch, "kv_heads": p.kv_heads,
        "shared_heads": shared, "queries": p.queries, "keys": p.keys, "head_size": p.head_size,
        "value_size": p.value_size, "causal": _bool(causal), "offset": causal_offset(p),
        "masked": _bool(p.mask_shape is not None), "additive": _bool(additive),
        "mask_type": mask_type, "mask_value": mask_value,
        "scale": _float(p.scale * _LOG2_E),
        "factor": _float(1.0 if additive else p.scale * _LOG2_E),
        "group": heads_of_group(heads, p.cache_bytes(), c.tiles(p), c.arch),
        "threads": REDUCTION_THREADS,
    }  # fmt: skip
    shapes = [shape for shape, _ in p.shapes()]
    for operand, axes, sizes in (
        ("q", p.q_axes, shapes[0]),
        ("k", p.k_axes, shapes[1]),
        ("v", p.v_axes, shapes[2]),
        ("out", p.out_axes, shapes[-1]),
    ):
        strides = _strides(axes, sizes)
        along = "key" if operand in "kv" else "query"
        fields |= {
            f"{operand}_batch": strides["b"],
            f"{operand}_head": strides["h"],
            f"{operand}_{along}": strides["s"],
        }
    shape = p.mask_shape or (1, 1, 1, p.keys)
    steps = _strides(AXES, shape)
    for name, axis, extent in zip(("batch", "head", "query"), AXES, shape, strict=False):
        fields[f"mask_{name}"] = steps[axis] if extent > 1 else 0
    return fields


def _strides(axes: str, shape: Sequence[int]) -> dict[str, int]:
    """Return the stride of each axis of a tensor, in elements."""
    found, step = {}, 1
    for axis, extent in zip(reversed(axes), reversed(shape), strict=True):
        found[axis] = step
        step *= extent
    return found


def _bool(value: bool) -> str:
    return str(value).lower()


def _float(value: float) -> str:
    return f"{value:.9e}f"

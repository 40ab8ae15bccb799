"""The PrimFunc of fused attention: parameters, TMA descriptors, kernel."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.kernel import AttentionKernel, AttentionMaps
from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.parameters import declare, mark
from tvmopt.kernels.cuda.hopper.problem import BYTES, KernelSignature
from tvmopt.kernels.cuda.hopper.tma import tensor_map
from tvmopt.kernels.workload import Refusal

# Axes of a TMA descriptor, innermost first.
_TMA_AXES = "dshb"


def fused_attention(
    problem: AttentionProblem, config: HopperAttentionConfig, name: str | None = "main"
) -> tirx.PrimFunc | Refusal:
    """Emit the kernel: a PrimFunc of Q, K, V, [mask], output (:meth:`AttentionProblem.shapes`).

    Args:
        problem: Shapes, dtypes, masks.
        config: Tile, ring, overlap.
        name: Global symbol of the PrimFunc; None for a private one.

    Returns:
        A TIRx PrimFunc (``tir_pipeline="tirx"``); a refusal where ``config`` does not fit.
    """
    if reason := config.why_not(problem):
        return reason
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        _body(problem, config, name)
    return builder.get()


def _body(p: AttentionProblem, c: HopperAttentionConfig, name: str | None) -> None:
    mark(name, ATTENTION)
    shapes = p.shapes()
    names = ["q", "k", "v", *(["mask"] if p.mask_shape is not None else []), "out"]
    buffers = tuple(
        tirx.decl_buffer(shape, dtype, name=name)
        for name, (shape, dtype) in zip(names, shapes, strict=True)
    )
    last = len(buffers) - 1
    of = declare(KernelSignature(buffers, 0, 1, last, tuple(range(2, last))))
    q_tile = OperandTile(c.tile_queries, p.head_size)
    maps = AttentionMaps(
        q=_map(of.a, p.dtype, p.q_axes, q_tile, c.tile_queries),
        k=_map(of.b, p.dtype, p.k_axes, OperandTile(c.tile_keys, p.head_size), c.tile_keys),
        v=_map(
            of.inputs[0], p.dtype, p.v_axes, OperandTile(c.tile_keys, p.value_size), c.tile_keys
        ),
        out=_map(of.out, p.dtype, p.out_axes, OperandTile(c.tile_queries, p.value_size), 64),
    )
    mask = of.inputs[1] if p.mask_shape is not None else None
    AttentionKernel(p, c, maps, mask).emit()


def _map(buffer: tirx.Buffer, dtype: str, axes: str, tile: OperandTile, rows: int) -> Expr:
    """Emit the TMA descriptor of an operand, boxes of ``rows`` rows of one line."""
    extents = [int(extent) for extent in buffer.shape]
    strides, step = {}, BYTES[dtype]
    for axis, extent in zip(reversed(axes), reversed(extents), strict=True):
        strides[axis] = step
        step *= extent
    shape = [extents[axes.index(axis)] for axis in _TMA_AXES]
    return tensor_map(
        buffer,
        dtype,
        shape,
        [strides[axis] for axis in _TMA_AXES[1:]],
        [tile.width, rows, 1, 1],
        swizzle=tile.swizzle,
    )

"""The PrimFunc of fused attention: its parameters, and the kernel."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.kernel import AttentionKernel
from tvmopt.kernels.cuda.hopper.attention.maps import attention_maps
from tvmopt.kernels.cuda.hopper.parameters import declare, mark
from tvmopt.kernels.cuda.hopper.problem import KernelSignature
from tvmopt.kernels.workload import Refusal


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
    maps = attention_maps(p, c, of)
    mask = of.inputs[1] if p.mask_shape is not None else None
    AttentionKernel(p, c, maps, mask).emit()

"""The PrimFunc of fused attention: its parameters, and the kernel."""

from __future__ import annotations

from tvm import tirx

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.attention_prim_func import attention_prim_func
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.kernel import AttentionKernel
from tvmopt.kernels.cuda.hopper.attention.maps import attention_maps
from tvmopt.kernels.cuda.hopper.parameters import Parameters
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

    def emit(of: Parameters, mask: tirx.Buffer | None) -> None:
        maps = attention_maps(problem, config, of)
        AttentionKernel(problem, config, maps, mask).emit()

    return attention_prim_func(problem, config, ATTENTION, name, emit)

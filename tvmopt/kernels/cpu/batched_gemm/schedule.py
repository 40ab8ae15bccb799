"""Batched GEMM of two activations: Q K^T and P V of attention, one small GEMM per head.

B changes at every call, so it cannot be prepacked. Packing it at every call costs a pass through L2
and a parallel region. Its rows are contiguous vectors, so the micro-kernel reads it in place;
``benchmarks/cpu_attention.py`` compares the two. A panel of B in a thread-local buffer was slower.
"""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cpu.batched_gemm.config import BatchedGemmConfig
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, match_contraction
from tvmopt.kernels.cpu.common.nest import NestLoops, misfit, schedule_nest, unit_loops
from tvmopt.kernels.workload import Refusal


def unsuited(form: ContractionForm, arch: CpuArch) -> Refusal | None:
    """Return why ``form`` is no GEMM of two activations for each element of a batch axis."""
    facts, data, weight = form.facts, form.data.strides, form.weight.strides
    if form.constant:
        return Refusal("its weight is constant, and prepacked once")
    if form.producers:
        return Refusal("an operand is computed in the function")
    if not any(data[i] and weight[i] for i in facts.spatial if i != form.vector):
        return Refusal("its operands share no batch axis")
    if weight[form.vector] != 1:
        return Refusal("its columns are not contiguous in B")
    if form.dot(arch) is not None:
        return Refusal("the dot-product instruction needs a packed weight")
    return None


def emit(func: tirx.PrimFunc, hint: BatchedGemmConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after, for 12 heads and a tile of 6 rows x 2 vectors of 16::

        for h, m, n: for k: acc[h, m, n] += A[h, m, k] * B[h, k, n]
        for h, m, n: Y[h, m, n] = acc[h, m, n] / 8 + mask[n]

        for h in T.parallel(12): for mo, no:
            for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16): acc[...] = 0
            for k:
                for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16):
                    acc[...] += A[h, m, k] * B[h, k, no * 32 + c * 16 + v]
            for mi in T.unroll(6): for v in T.vectorized(32): Y[...] = ...
    """
    form = match_contraction(func)
    if isinstance(form, Refusal):
        return form
    refusal = unsuited(form, hint.arch) or misfit(hint, form.extents)
    if refusal is not None:
        return refusal
    lanes = hint.arch.lanes(form.facts.dtype)
    if hint.register_tile[-1] % lanes or form.extents[-1] % hint.register_tile[-1]:
        return Refusal(f"{hint.register_tile[-1]} columns are not whole vectors of B")
    sch, anchor = form.sch, form.anchor
    facts, loops = block_facts(sch, anchor), sch.get_loops(anchor)
    split = [
        sch.split(loops[i], [None, size])
        for i, size in zip(facts.spatial, hint.register_tile, strict=True)
    ]
    nest = NestLoops(
        units=unit_loops(facts, loops),
        outer=[outer for outer, _ in split],
        reduction=[loops[i] for i in facts.reduction],
        rows=[row for _, row in split[:-1]],
        vectors=sch.split(split[-1][1], [None, lanes]),
        partial=[
            outer
            for (outer, _), extent, size in zip(
                split, form.extents, hint.register_tile, strict=True
            )
            if extent % size
        ],
    )
    schedule_nest(form, hint, nest)
    return sch

"""The PrimFunc of fused attention around a kernel: name, attributes and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, mark
from tvmopt.kernels.cuda.hopper.problem import KernelSignature
from tvmopt.kernels.workload import Refusal


class _Config(Protocol):
    def why_not(self, problem: AttentionProblem) -> Refusal | None: ...


def attention_prim_func(
    problem: AttentionProblem,
    config: _Config,
    family: str,
    name: str | None,
    emit: Callable[[Parameters, tirx.Buffer | None], None],
) -> tirx.PrimFunc | Refusal:
    """Return a PrimFunc of Q, K, V, [mask], output (:meth:`AttentionProblem.shapes`).

    Args:
        problem: Shapes, dtypes, masks.
        config: Configuration of the kernel.
        family: Name of the kernel's family.
        name: Global symbol of the PrimFunc; None for a private one.
        emit: Emits the body, given the parameters (Q is ``a``, K is ``b``, V is the first of
            ``inputs``) and the mask.

    Returns:
        A TIRx PrimFunc (``tir_pipeline="tirx"``); a refusal where ``config`` does not fit.
    """
    if reason := config.why_not(problem):
        return reason
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        mark(name, family)
        masked = problem.mask_shape is not None
        buffers = tuple(
            tirx.decl_buffer(shape, dtype, name=operand)
            for operand, (shape, dtype) in zip(
                ["q", "k", "v", *(["mask"] if masked else []), "out"], problem.shapes(), strict=True
            )
        )
        last = len(buffers) - 1
        of = declare(KernelSignature(buffers, 0, 1, last, tuple(range(2, last))))
        emit(of, of.inputs[1] if masked else None)
    return builder.get()

"""The function that computes attention on a target, where one is faster than separate operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tvm import tirx
from tvm.target import Target

from tvmopt.device.cpu_of_target import cpu_of_target
from tvmopt.device.gpus import gpu_of_target
from tvmopt.kernels.attention import AttentionProblem
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.attention.problem import ATTENTION_KIND
from tvmopt.kernels.cpu.attention import attention_kernel, attention_tiling, pays
from tvmopt.kernels.families import families_of
from tvmopt.kernels.scheduled import UNFINISHED_ATTR
from tvmopt.kernels.workload import Refusal, Workload

#: Returns the function of a problem; None for separate operators.
AttentionKernel: TypeAlias = "Callable[[AttentionProblem], tirx.PrimFunc | None]"


def attention_on_cpu(target: Target) -> AttentionKernel:
    """Return generated kernels, which are not tuned, where they are predicted to pay."""
    arch = cpu_of_target(target)

    def kernel(problem: AttentionProblem) -> tirx.PrimFunc | None:
        if not pays(problem, arch):
            return None
        made = attention_kernel(problem, attention_tiling(problem, arch))
        return made.with_attr(UNFINISHED_ATTR, True)

    return kernel


def attention_on_gpu(target: Target) -> AttentionKernel:
    """Return the plain function, which is scheduled later, where a family has a kernel for it."""
    arch = gpu_of_target(target)

    def kernel(problem: AttentionProblem) -> tirx.PrimFunc | None:
        func = attention_function(problem)
        for family in families_of(arch):
            if family.kind == ATTENTION_KIND:
                form = family.match(Workload(func), arch)
                if not isinstance(form, Refusal) and family.rank(form, arch):
                    return func
        return None

    return kernel

"""Differences in lowering between CPUs and CUDA GPUs: one row per kind of target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tvm
from tvm import relax, tirx
from tvm.target import Target

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.device.gpus import gpu_of_target
from tvmopt.kernels.cuda.int4.family import Int4Gemv
from tvmopt.kernels.workload import Refusal, Workload
from tvmopt.transform.attention import CombineProjections, ViewsBesideAttention
from tvmopt.transform.attention.kernels import (
    AttentionKernel,
    attention_on_cpu,
    attention_on_gpu,
)
from tvmopt.transform.broadcast_apart import BroadcastApart
from tvmopt.transform.cast_pairs import RemoveCastPairs
from tvmopt.transform.combine_matmuls import CombineMatmuls
from tvmopt.transform.legalize import Legalize, legalize_map
from tvmopt.transform.legalize_hopper import hopper_legalize_map
from tvmopt.transform.merge_into_gemv import MergeIntoGemv
from tvmopt.transform.narrow_norm import ReadNarrowNorms
from tvmopt.transform.plain_names import PlainNames
from tvmopt.transform.reciprocal_softmax import reciprocal_softmax
from tvmopt.transform.recompute_indices import RecomputeIndices
from tvmopt.transform.rms_norm import FuseRmsNorm
from tvmopt.transform.split_concat import SplitConcat
from tvmopt.transform.wide_pools import wide_pools
from tvmopt.transform.winograd import WinogradRule, cpu_rule
from tvmopt.transform.winograd_gpu import gpu_rule

_Passes: TypeAlias = "list[tvm.transform.Pass]"
_LegalizeMap: TypeAlias = Mapping[str, Legalize]


@dataclasses.dataclass(frozen=True)
class TargetPasses:
    """Passes and rules of one kind of target.

    Attributes:
        first: Makes the passes before graph clean-up.
        combine: Makes the passes that combine operators, after common subexpressions are gone.
        unpacks_weights: Whether kernels unpack int4 and int8 weights; constants are dequantised
            otherwise.
        before_fusion: Makes the passes between legalization and fusion.
        merge: Makes the passes between FuseOps and FuseTIR for a target, which merge functions
            that one of our kernels computes together.
        last: Makes the passes after fusion.
        winograd_rule: Returns the Winograd rule of a target.
        attention: Returns a function of attention problems that gives the kernel of each; None
            where separate matmuls and softmax are faster, or no kernel takes the problem.
        legalize: Returns the ``customize_legalize_map`` of ``LegalizeOps`` for a target and a
            Winograd rule; the third argument is whether TF32 is allowed.
    """

    first: Callable[[], _Passes]
    combine: Callable[[Target | None], _Passes]
    unpacks_weights: bool
    before_fusion: Callable[[], _Passes]
    merge: Callable[[Target], _Passes]
    last: Callable[[], _Passes]
    winograd_rule: Callable[[Target], WinogradRule | None]
    attention: Callable[[Target], AttentionKernel]
    legalize: Callable[[Target, WinogradRule | None, bool], _LegalizeMap]


def _views() -> _Passes:
    """Return passes that turn reshapes into views, as kernel launches are expensive.

    They do not match scheduled reshape functions.
    """
    return [relax.transform.RewriteDataflowReshape(), relax.transform.DeadCodeElimination(["main"])]


def _cpu_legalize(target: Target, winograd: WinogradRule | None, allow_tf32: bool) -> _LegalizeMap:
    return legalize_map(winograd) | wide_pools(target) | reciprocal_softmax()


def _cuda_combine(target: Target | None) -> _Passes:
    assert target is not None  # its kind is CUDA
    return [
        RemoveCastPairs(),
        FuseRmsNorm(),
        ReadNarrowNorms(),
        CombineProjections(attention_on_gpu(target)),
        CombineMatmuls(),
    ]


def _cuda_legalize(target: Target, winograd: WinogradRule | None, allow_tf32: bool) -> _LegalizeMap:
    """Return Hopper's map where the GPU has wgmma, which restricts operand layouts."""
    has_wgmma = str(target.attrs["arch"]) == "sm_90a"
    if has_wgmma:
        return hopper_legalize_map(winograd, allow_tf32)
    return legalize_map(winograd)


def _merge_into_gemv(target: Target) -> _Passes:
    """Return the pass that merges into int4 GEMVs what their kernel computes on the GPU."""
    family, arch = Int4Gemv(), gpu_of_target(target)

    def takes(func: tirx.PrimFunc) -> bool:
        form = family.match(Workload(func), arch)
        return not isinstance(form, Refusal) and bool(family.rank(form, arch))

    return [MergeIntoGemv(takes)]


_CPU = TargetPasses(
    first=list,
    combine=lambda target: [],
    unpacks_weights=False,
    before_fusion=list,
    merge=lambda target: [],
    last=lambda: [ViewsBesideAttention()],
    winograd_rule=cpu_rule,
    attention=attention_on_cpu,
    legalize=_cpu_legalize,
)
_CUDA = TargetPasses(
    first=lambda: [PlainNames()],
    combine=_cuda_combine,
    unpacks_weights=True,
    before_fusion=lambda: [RecomputeIndices(), BroadcastApart()],
    merge=_merge_into_gemv,
    last=lambda: [SplitConcat(), *_views()],
    winograd_rule=lambda target: gpu_rule(gpu_of_target(target)),
    attention=attention_on_gpu,
    legalize=_cuda_legalize,
)
#: Passes without a target, and of target kinds without kernels of ours.
_GENERIC = dataclasses.replace(
    _CPU,
    winograd_rule=lambda target: None,
    attention=lambda target: lambda problem: None,
)
_BY_KIND = {CpuArch.kind: _CPU, CudaArch.kind: _CUDA}


def passes_of(target: Target | None) -> TargetPasses:
    """Return the passes of the kind of ``target``."""
    return _GENERIC if target is None else _BY_KIND.get(target.kind.name, _GENERIC)

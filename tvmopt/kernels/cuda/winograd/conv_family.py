"""Kernel family: a float32 3 x 3 convolution by Winograd's algorithm, weight transform included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.gemm_form import gemm_form
from tvmopt.kernels.cuda.simt.space import simt_matmul_hints
from tvmopt.kernels.cuda.winograd.config import WinogradConvConfig
from tvmopt.kernels.cuda.winograd.conv import CONV_NAME, WinogradConv, emit_conv, winograd_conv
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.kernels.workload import Refusal, Workload

# Configurations of the GEMM for each tile size; few, so that direct convolutions are measured, too:
# the sum of four predictions is not fitted.
_MOST_GEMMS = 6
_FLOAT = 4


class WinogradConvolution(Family[WinogradConv, WinogradConvConfig]):
    """Four kernels: weight transform, input transform, batched SIMT GEMM, output transform."""

    name = CONV_NAME
    config_type = WinogradConvConfig
    kind = "convolution"
    share = 4

    def match(self, workload: Workload, arch: CudaArch) -> WinogradConv | Refusal:
        """Return the convolution, if its weight is a parameter."""
        return workload.analysed(winograd_conv) or Refusal("TVM refuses a step of the analysis")

    def rank(self, form: WinogradConv, arch: CudaArch) -> Sequence[Ranked[WinogradConvConfig]]:
        """Return the configurations, fastest predicted first: the sums over the four kernels."""
        found: list[Ranked[WinogradConvConfig]] = []
        for m in MATRICES:
            if form.why_not(m, arch):
                continue
            stages = form.stages(m)
            gemm, transforms = gemm_form(stages.product), stages.transforms
            if isinstance(gemm, Refusal) or isinstance(transforms, Refusal):
                continue
            first = [transform.configs(arch)[:1] for transform in transforms]
            if not all(first):
                continue
            others = sum(one.cycles for [one] in first) + _weight_cycles(form, m, arch)
            for one in simt_matmul_hints(gemm, arch)[:_MOST_GEMMS]:
                fields = {f.name: getattr(one.hint, f.name) for f in dataclasses.fields(one.hint)}
                config = WinogradConvConfig(**(fields | {"template": CONV_NAME}), m=m)
                found.append(Ranked(config, one.cycles + others, one.facts))
        return sorted(found, key=lambda one: one.cycles)

    def emit(self, func: tirx.PrimFunc, hint: WinogradConvConfig) -> tirx.PrimFunc | Refusal:
        """Emit the kernels in place of ``func``."""
        return emit_conv(func, hint)

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return True: a tile's outputs all depend on each of its inputs, and inf - inf is NaN."""
        return True

    def build_effort(self, hint: WinogradConvConfig) -> float:
        """Return the build time relative to other kernels."""
        return 4.0


def _weight_cycles(form: WinogradConv, m: int, arch: CudaArch) -> float:
    """Return the cycles of the weight transform, which is bound by memory."""
    channels, outputs = form.channels
    moved = (9 * channels * outputs + form.weight_elements(m)) * _FLOAT
    rate = arch.dram_bytes_cycle * arch.costs.stream_bandwidth_share
    return arch.costs.launch_cycles + moved / rate

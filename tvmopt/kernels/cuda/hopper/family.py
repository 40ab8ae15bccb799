"""Hopper kernel families: GEMM and implicit-GEMM convolution with TMA and wgmma, in TIRx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.configs import conv_hints, gemm_hints
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.hints import CONV, GEMM
from tvmopt.kernels.cuda.hopper.kernel import kernel
from tvmopt.kernels.cuda.hopper.match import Match, match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

_Problem = TypeVar("_Problem")


def _match(func: tirx.PrimFunc) -> Match | Refusal:
    found = match(func)
    return Refusal(found) if isinstance(found, str) else found


class _Hopper(Family[_Problem, CudaHint]):
    """What the GEMM and the convolution family share."""

    share = 4
    _problems: tuple[type, ...]

    def match(self, workload: Workload, arch: CudaArch) -> _Problem | Refusal:
        """Return the problem: extents, dtypes, layouts and epilogue."""
        if not arch.has_wgmma:
            return Refusal("the GPU has no wgmma")
        found: Match | Refusal | None = workload.analysed(_match)
        if found is None:
            return Refusal("TVM refused a step of the analysis")
        if isinstance(found, Refusal):
            return found
        if not isinstance(found.problem, self._problems):
            return Refusal(f"not a {self.kind}")
        return found.problem  # type: ignore[return-value]

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> tirx.PrimFunc | None:
        """Emit the TIRx kernel in place of ``func``; None where it or the hint does not fit."""
        if hint.template != self.name or not hint.arch.has_wgmma:
            return None
        try:
            return kernel(func, hint)
        except ConfigError:
            return None

    def build_effort(self, hint: CudaHint) -> float:
        """Return the build time relative to other kernels."""
        return 2.0


class HopperGemm(_Hopper[GemmProblem]):
    """Warp-specialised GEMM: a TMA producer warpgroup, consumer warpgroups with wgmma."""

    name = GEMM
    config_type = CudaHint
    kind = "gemm"
    _problems = (GemmProblem,)

    def rank(self, form: GemmProblem, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first."""
        return gemm_hints(form, arch)


class HopperConv(_Hopper[ConvProblem | LineProblem]):
    """Implicit-GEMM convolution in NHWC: the same main loop, TMA loads of pixel boxes."""

    name = CONV
    kind = "convolution"
    _problems = (ConvProblem, LineProblem)

    def rank(self, form: ConvProblem | LineProblem, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first."""
        return conv_hints(form, arch)

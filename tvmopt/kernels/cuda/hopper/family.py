"""Hopper kernel families: GEMM and implicit-GEMM convolution with TMA and wgmma, in TIRx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import CONV, GEMM, HopperConfig, HopperConvConfig
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.match import Match, match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import conv_configs, gemm_configs
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

_Problem = TypeVar("_Problem")
_Config = TypeVar("_Config", bound=HopperConfig)


class _Hopper(Family[_Problem, _Config]):
    """Base of the GEMM and the convolution family."""

    share = 4
    _problems: tuple[type, ...]

    def match(self, workload: Workload, arch: CudaArch) -> _Problem | Refusal:
        """Return the problem: extents, dtypes, layouts and epilogue."""
        if not arch.has_wgmma:
            return Refusal("the GPU has no wgmma")
        found: Match | Refusal | None = workload.analysed(match)
        if found is None:
            return Refusal("TVM refused a step of the analysis")
        if isinstance(found, Refusal):
            return found
        if not isinstance(found.problem, self._problems):
            return Refusal(f"not a {self.kind}")
        return found.problem  # type: ignore[return-value]

    def build_effort(self, hint: _Config) -> float:
        """Return the build time relative to other kernels."""
        return 2.0


class HopperGemm(_Hopper[GemmProblem, HopperConfig]):
    """Warp-specialised GEMM: a TMA producer warpgroup, consumer warpgroups with wgmma."""

    name = GEMM
    config_type = HopperConfig
    kind = "gemm"
    _problems = (GemmProblem,)

    def rank(self, form: GemmProblem, arch: CudaArch) -> Sequence[Ranked[HopperConfig]]:
        """Return the configurations, fastest predicted first."""
        return gemm_configs(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: HopperConfig) -> tirx.PrimFunc | Refusal:
        """Emit the TIRx kernel in place of ``func``."""
        found = match(func)
        if isinstance(found, Refusal):
            return found
        if not isinstance(found.problem, GemmProblem):
            return Refusal("not a gemm")
        return gemm(found.problem, hint, found.name, found.signature)

    def overflows_alike(self, func: tirx.PrimFunc) -> bool:
        """Return False for split float32: tensor cores saturate accumulators of parts."""
        found = match(func)
        problem = None if isinstance(found, Refusal) else found.problem
        return not (isinstance(problem, GemmProblem) and problem.split_float32)


class HopperConv(_Hopper[ConvProblem | FewChannelsProblem, HopperConvConfig]):
    """Implicit-GEMM convolution in NHWC: the same main loop, TMA loads of pixel boxes."""

    name = CONV
    config_type = HopperConvConfig
    kind = "convolution"
    _problems = (ConvProblem, FewChannelsProblem)

    def rank(
        self, form: ConvProblem | FewChannelsProblem, arch: CudaArch
    ) -> Sequence[Ranked[HopperConvConfig]]:
        """Return the configurations, fastest predicted first."""
        return conv_configs(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: HopperConvConfig) -> tirx.PrimFunc | Refusal:
        """Emit the TIRx kernel in place of ``func``."""
        found = match(func)
        if isinstance(found, Refusal):
            return found
        if isinstance(found.problem, GemmProblem):
            return Refusal("not a convolution")
        return conv(found.problem, hint, found.name, found.signature)

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return True for few channels: zero weights pad a filter row, and NaN times 0 is NaN."""
        found = match(func)
        problem = None if isinstance(found, Refusal) else found.problem
        return isinstance(problem, FewChannelsProblem) or (
            isinstance(problem, ConvProblem) and problem.few_channels is not None
        )

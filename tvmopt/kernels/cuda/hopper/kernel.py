"""Emit a Hopper kernel: a TIRx PrimFunc that replaces a fused PrimFunc, configured by a hint."""

from __future__ import annotations

from tvm import tirx

from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_kernel import line_conv
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.hints import CONV, GEMM, box_of, config_of
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem


def kernel(func: tirx.PrimFunc, hint: CudaHint) -> tirx.PrimFunc:
    """Emit the kernel that computes ``func`` with the configuration in ``hint``.

    Args:
        func: A PrimFunc as FuseTIR leaves it.
        hint: A configuration of the template ``hopper_gemm`` or ``hopper_conv``.

    Returns:
        A TIRx PrimFunc with the name and the parameter order of ``func``.
        :data:`tvmopt.kernels.cuda.pipeline.PIPELINE` compiles it.

    Raises:
        ConfigError: When ``func`` is no GEMM or convolution, or ``hint`` does not fit it.
    """
    found = match(func)
    if isinstance(found, str):
        raise ConfigError(f"no Hopper kernel for this function: {found}")
    config = config_of(hint)
    if isinstance(found.problem, GemmProblem) and hint.template == GEMM:
        return gemm(found.problem, config, found.name, found.signature)
    if isinstance(found.problem, LineProblem) and hint.template == CONV:
        return line_conv(found.problem, config, box_of(hint), found.name, found.signature)
    if isinstance(found.problem, ConvProblem) and hint.template == CONV:
        return conv(found.problem, config, box_of(hint), found.name, found.signature)
    raise ConfigError(f"{hint.template} is no template of this function's problem")

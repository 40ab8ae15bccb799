"""Emit a Hopper kernel: a fused function and a hint give the TIRx function in its place."""

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
    """The kernel that computes ``func`` as ``hint`` says.

    Args:
        func: A function as FuseTIR leaves it.
        hint: A configuration of ``hopper_gemm`` or ``hopper_conv``.

    Returns:
        A TIRx function of ``func``'s parameters, in their order, and of its name; it is compiled by
        :data:`tvmopt.kernels.cuda.pipeline.PIPELINE`.

    Raises:
        ConfigError: When ``func`` is no such product, or ``hint`` does not fit it.
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

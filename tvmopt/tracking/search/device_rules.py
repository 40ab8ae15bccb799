"""Refuse a search whose target cannot be measured here, before anything is done."""

from __future__ import annotations

from tvmopt.device import cuda_runtime
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.toolchain.modules import check_tools
from tvmopt.link import link_options
from tvmopt.search.declared import Declared
from tvmopt.tracking.pipeline.request import Request

_RULE = "target must be what this machine can measure, since a search compares latencies"
_CURE = "run the search on a machine that has it, or use target=host"


def check_has_gpu(target: str) -> None:
    """Raise when ``target`` is this machine's GPU, and there is none.

    Raises:
        ConfigError: The rule, the value got, what to do.
    """
    if target.strip() == "cuda" and (why := cuda_runtime.problem()):
        raise ConfigError(f"{_RULE}, but got 'cuda', and {why}; {_CURE}")


def check_searchable(request: Request, target: str, declared: Declared) -> None:
    """Raise when the target cannot be measured here, or cannot take a declared value.

    Args:
        request: The request of the search.
        target: The target as the user wrote it.
        declared: The user's restrictions of the space.

    Raises:
        ConfigError: The rule, the value got, what to do.
        EnvironmentSetupError: When no compiler is installed that builds for the GPU.
    """
    if lacking := request.target.why_not_here():
        raise ConfigError(f"{_RULE}, but got {target!r}, and {lacking}; {_CURE}")
    if request.target.gpu is None:
        return
    link_options()
    check_tools()
    for name, values in (
        ("dtype", declared.dtypes),
        ("layout", declared.layouts),
        ("strategy", declared.strategies),
    ):
        for value in values:
            request.changed(**{name: value})  # checks it

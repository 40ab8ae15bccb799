"""Validate requests for GPU targets: kernels that exist, and tuning that can be measured."""

from __future__ import annotations

from tvmopt.choices import GPU_LAYOUTS, GPU_STRATEGIES, LOW_DTYPES
from tvmopt.device import dtypes
from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ConfigError


def check_gpu_request(
    gpu: CudaArch, *, layout: str, dtype: str, strategy: str, rpc_tracker: str
) -> None:
    """Refuse parameters that only CPUs support.

    Raises:
        ConfigError: The rule, the value got, what to do.
    """
    if layout not in GPU_LAYOUTS:
        raise ConfigError(
            f"layout must be one of {', '.join(GPU_LAYOUTS)} for a GPU ({gpu.name}), but got "
            f"{layout!r}; auto is NHWC, which the tensor cores' kernels read"
        )
    least = dtypes.dtype(dtype).cuda_sm if dtype in LOW_DTYPES else 0
    if gpu.sm < least:
        raise ConfigError(
            f"dtype must not be {dtype} for {gpu.name}, a GPU of compute capability "
            f"{gpu.sm / 10:.1f}: those from {least / 10:.1f} on compute in it; use dtype=float16"
        )
    if strategy not in GPU_STRATEGIES:
        raise ConfigError(
            f"strategy must be one of {', '.join(GPU_STRATEGIES)} for a GPU ({gpu.name}), but got "
            f"{strategy!r}, which has no kernels for tensor cores"
        )
    if rpc_tracker:
        raise ConfigError(
            f"rpc_tracker must be empty for a GPU ({gpu.name}): a board is measured as a CPU; run "
            "on the machine with the GPU"
        )

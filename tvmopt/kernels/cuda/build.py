"""Compile scheduled or generated CUDA kernels to a runtime module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.pipeline import PIPELINE


def build_kernels(functions: Mapping[str, tirx.PrimFunc], arch: CudaArch) -> Any:
    """Compile kernels.

    Args:
        functions: Kernels by name.
        arch: The GPU.

    Returns:
        A ``tvm.runtime.Module``.
    """
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    with tvm.transform.PassContext(config=PASS_CONFIG):
        return tvm.tirx.build(tvm.IRModule(named), target=arch.to_tvm(), pipeline=PIPELINE)

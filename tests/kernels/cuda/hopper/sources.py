"""Helpers of the Hopper tests: configurations, functions, CUDA source, nvcc."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from typing import Any

import tvm
from tvm import relax, tirx

from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.config import (
    CONV,
    GEMM,
    HopperConfig,
    HopperConvConfig,
)
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES
from tvmopt.transform.broadcast_apart import BroadcastApart
from tvmopt.transform.lower import lower_passes

H200 = GPUS["nvidia-h200"]


def gemm_config(**fields: Any) -> HopperConfig:
    """A configuration for 16-bit operands on an H200."""
    return HopperConfig(GEMM, H200, **fields)


def fitted(config: HopperConfig, dtype: str) -> HopperConfig:
    """``config`` with the K block of another operand dtype."""
    return dataclasses.replace(config, tile_k=K_BLOCK_BYTES // BYTES[dtype])


def conv_config(
    config: HopperConfig, pixel_box: tuple[int, int, int] | None = None
) -> HopperConvConfig:
    """``config`` for a convolution."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return HopperConvConfig(**(values | {"template": CONV}), pixel_box=pixel_box)


def cuda_source(func: tirx.PrimFunc) -> str:
    """Return the CUDA source of ``func``."""
    built = tvm.compile(tvm.IRModule({"main": func}), target=H200.to_tvm(), tir_pipeline="tirx")
    return str(built.mod.imports[0].inspect_source())


def compile_with_nvcc(source: str, folder) -> str | None:
    """Return nvcc's register report; None without nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    path = folder / "kernel.cu"
    path.write_text(source)
    done = subprocess.run(
        [nvcc, "-cubin", "-arch=sm_90a", "-std=c++17", "-Xptxas", "-v", "-o",
         str(folder / "kernel.cubin"), str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


def lowered(params, body) -> tvm.IRModule:
    """Lower ``body`` to fused functions, legalized for any GPU; broadcasts are fused, too.

    Args:
        params: Name, shape (a string is a symbolic extent) and dtype of each parameter.
        body: Function of ``emit`` and the variables; returns the result.
    """
    extents: dict[str, tirx.Var] = {}
    variables = []
    for name, shape, dtype in params:
        sizes = [
            extents.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d for d in shape
        ]
        variables.append(relax.Var(name, relax.TensorType(sizes, dtype)))
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *variables))
        builder.emit_func_output(result)
    with H200.to_tvm(), tvm.transform.PassContext(opt_level=3):
        passes = lower_passes(None, H200.to_tvm())
        passes = [p for p in passes if not isinstance(p, BroadcastApart)]
        return tvm.transform.Sequential(passes)(builder.get())


def functions(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return the TensorIR functions of ``mod``."""
    return {
        var.name_hint: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def only_function(mod: tvm.IRModule) -> tirx.PrimFunc:
    """Return the one TensorIR function of ``mod``."""
    [func] = functions(mod).values()
    return func

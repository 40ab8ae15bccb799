"""Run a library that was just built, and read the assembly of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx

from tvmopt.device.target import TargetSpec
from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.library import open_library
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE


def loaded(path: Path) -> Callable[..., list[np.ndarray]]:
    """Return a function from input arrays to output arrays of the library at ``path``."""
    executor = open_library(str(path), threads=2)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        tensors = [executor.tensor(array) for array in arrays]
        return [executor.read(tensor) for tensor in executor.bind(MAIN, tensors)()]

    return run


def assembly(kernel: tirx.PrimFunc, spec: TargetSpec) -> list[str]:
    """Return the lines of assembly of a finished kernel."""
    mod = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    built = tvm.compile(mod, spec.to_tvm(), tir_pipeline=CPU_PIPELINE)
    return str(getattr(built, "mod", built).inspect_source("asm")).splitlines()

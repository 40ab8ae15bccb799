"""Run a CUDA schedule on the CPU: threads serially, all memory scopes global.

A schedule computes the same whether its threads run in parallel or one after the other. This runner
does not execute barriers and tensor-core instructions; see :mod:`tests.emulator.cuda`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm
from tvm import s_tir
from tvm.script import from_source

from tvmopt.kernels.cuda.intrinsics import mma


@contextlib.contextmanager
def defined_instructions() -> Iterator[None]:
    """Context in which tensor intrinsics have their descriptions as implementations."""
    register = mma._register

    def plainly(name: str, make: Callable[..., tuple[Any, Any]], *of: Any) -> str:
        return register(f"{name}_defined", lambda: (make(*of)[0], make(*of)[0]))

    mma._register = plainly
    try:
        yield
    finally:
        mma._register = register


def plain(sch: s_tir.Schedule) -> tvm.IRModule:
    """Return the module of ``sch`` without threads, scopes and annotations."""
    text = sch.mod.script()
    extent = r"[^,()]+|T\.int64\(\d+\)"
    text = re.sub(rf"T\.thread_binding\(({extent}), thread=\"[^\"]+\"", r"T.serial(\1", text)
    text = re.sub(r", scope=\"(?:shared\.dyn|shared|local|warp)\"", "", text)
    text = re.sub(r", annotations=\{[^{}]*\}", "", text)
    text = re.sub(r"^\s*T\.sblock_attr\(.*\)$", "", text, flags=re.MULTILINE)
    return from_source(text)


def run(sch: s_tir.Schedule, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the output of the scheduled function for ``arrays``."""
    mod = plain(sch)
    target = tvm.target.Target.from_device("cpu")
    built = tvm.tirx.build(mod, target=target, pipeline="s_tir")
    param = mod["main"].params[-1]
    shape, dtype = tuple(int(e) for e in param.shape), str(param.dtype)
    device = tvm.cpu()
    result = tvm.runtime.empty(shape, dtype, device)
    built["main"](*(tvm.runtime.tensor(a, device) for a in arrays), result)
    return result.numpy()

"""Let the next kernel start early where it loads constant weights before it waits.

The int4 GEMV fills its ring of pipeline stages before ``griddepcontrol.wait``. It can do so while
the kernels before it run, if they execute ``griddepcontrol.launch_dependents`` at their start. In a
decoder step most of them leave DRAM idle: RMSNorm, rotary embedding, attention of one query.

A kernel triggers early only if it leaves room beside it on every SM: otherwise blocks of the next
kernel would gather on the SMs that happen to end first (:mod:`.dependent_launch`). Modules without
such a GEMV are left alone.

A chain of early launches stays correct: every kernel waits before it ends, so that the kernel
before it has ended, too; and a kernel is only launched once all blocks of the one before run.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import IRModule, tirx
from tvm.backend.cuda.op import cuda_func_call

from tvmopt.device.cuda import CudaArch
from tvmopt.device.gpus import gpu_of_target
from tvmopt.kernels.cuda.toolchain.dependent_launch import (
    TRIGGER_STATEMENT,
    is_kernel,
    loads_before_waiting,
    waits,
)

_TRIGGER = "tvmopt_let_next_kernel_start"
_SOURCE = f"""
__forceinline__ __device__ void {_TRIGGER}() {{
  {TRIGGER_STATEMENT}
}}
"""
# Largest share of the threads of a GPU that a kernel with an early trigger occupies.
_MOST_THREADS_SHARE = 0.5


def trigger_early(mod: IRModule) -> IRModule:
    """Insert the trigger at the start of small kernels, if a kernel of ``mod`` loads early.

    Before -> after: ``kernel(): wait(); body`` -> ``kernel(): trigger(); wait(); body``

    Args:
        mod: Lowered device functions, with their waits, and host functions.
    """
    kernels = {v: f for v, f in mod.functions_items() if is_kernel(f) and waits(f)}
    if not any(loads_before_waiting(func) for func in kernels.values()):
        return mod
    out = mod.clone()
    for var, func in kernels.items():
        if not loads_before_waiting(func) and _leaves_room(func):
            trigger = tirx.Evaluate(cuda_func_call(_TRIGGER, source_code=_SOURCE))
            out[var] = func.with_body(tirx.SeqStmt([trigger, func.body]))
    return out


def _leaves_room(func: tirx.PrimFunc) -> bool:
    """Whether blocks of the next kernel find room beside the blocks of ``func`` on every SM."""
    extents: dict[str, int] = {}
    shared: list[str] = []

    def on_attr(attr: tirx.AttrStmt) -> None:
        if attr.attr_key == "thread_extent":
            known = isinstance(attr.value, tirx.IntImm)
            extents[attr.node.thread_tag] = int(attr.value) if known else 1 << 31

    def on_alloc(alloc: tirx.AllocBuffer) -> None:
        shared.extend({str(alloc.buffer.scope())} & {"shared.dyn"})

    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, on_attr), order="pre")
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, on_alloc), order="pre")
    gpu: CudaArch = gpu_of_target(func.attrs["target"])
    blocks = math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx"))
    fits = math.prod(extents.values()) <= _MOST_THREADS_SHARE * gpu.sms * gpu.threads_sm
    return fits and (not shared or blocks <= gpu.sms)

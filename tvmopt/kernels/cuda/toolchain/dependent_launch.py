"""A kernel comes when the blocks of the one before have ended (programmatic dependent launch).

Between two kernels of a stream a GPU does nothing for about a microsecond: what the one before
wrote is brought to where all see it, and the next one is launched. From compute capability 9.0 on
the second can begin while the first is still done: its blocks come once all blocks of the kernel
before have ended, and wait, before they read or write anything, until its results are seen.

A kernel could ask for its successor before its end. Successors then take the places of the blocks
that end first, many on the same multiprocessor, while others get none: networks of kernels of many
kinds took 1 to 15 % longer on an H200, a kernel that follows itself less.

A kernel that waits is launched so, and no other: whoever did not wait would run too early.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.target import Target

#: Attribute of functions whose kernels are to wait for the one before.
OVERLAPS = "tvmopt.overlaps"
# What TVM's runtime launches so; TVM spells it that way.
_TAG = "tirx.use_programtic_dependent_launch"
_LAUNCH, _DYNAMIC_SHARED = "tirx.kernel_launch_params", "tirx.use_dyn_shared_memory"
_LEAST_CAPABILITY = 90
_WAIT = "tvmopt_wait_for_kernel_before"
_SOURCE = f"""
__forceinline__ __device__ void {_WAIT}() {{
  asm volatile("griddepcontrol.wait;" ::: "memory");
}}
"""


def wait_for_kernel_before() -> Any:
    """A call that ends when the kernel before is done; every thread makes it, before all else."""
    return cuda_func_call(_WAIT, source_code=_SOURCE)


def waiting(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered device function that waits before all else; others, and old GPUs', are as before.

    before -> after: ``kernel(): body`` -> ``kernel(): wait_for_kernel_before(); body``
    """
    if not _is_kernel(func) or _waits(func) or not can_wait(func.attrs["target"]):
        return func
    wait = tirx.Evaluate(wait_for_kernel_before())
    return func.with_body(tirx.SeqStmt([wait, func.body]))


def launched_early(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered device function that is launched while the kernel before ends, where it waits."""
    if not _is_kernel(func) or not _waits(func):
        return func
    tags = [str(tag) for tag in func.attrs[_LAUNCH] if str(tag) != _TAG]
    place = len(tags) - (_DYNAMIC_SHARED in tags)  # which must be the last
    return func.with_attr(_LAUNCH, [*tags[:place], _TAG, *tags[place:]])


def can_wait(target: Target) -> bool:
    """Whether the GPU of ``target`` has what this needs."""
    arch = str(target.attrs["arch"]).removeprefix("sm_").rstrip("af")
    return int(arch) >= _LEAST_CAPABILITY


def _is_kernel(func: tirx.PrimFunc) -> bool:
    return _LAUNCH in (func.attrs or {})


def _waits(func: tirx.PrimFunc) -> bool:
    found: list[ir.Call] = []

    def on_call(call: ir.Call) -> None:
        if any(isinstance(a, ir.StringImm) and str(a.value) == _WAIT for a in call.args):
            found.append(call)

    tvm_ffi.structural_walk(func.body, (ir.Call, on_call), order="post")
    return bool(found)

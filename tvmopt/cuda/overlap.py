"""A kernel's blocks come to the GPU while the kernel before ends (programmatic dependent launch).

Between two kernels of a stream a GPU does nothing for about a microsecond. From compute capability
9.0 on a kernel may say, here as it begins, that the next one can be brought; its blocks then take
the places that become free, and wait until all of the kernel before is done and its results are
seen. They wait before they read or write anything, so that the order of a stream holds.

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
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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

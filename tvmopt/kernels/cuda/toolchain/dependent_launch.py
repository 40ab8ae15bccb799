"""Programmatic dependent launch (PDL): overlap the launch of a kernel with the end of another.

Between two kernels of a stream a GPU idles for about a microsecond: it flushes the results of the
first and launches the second. From compute capability 9.0 on, PDL overlaps the two: blocks of the
second kernel start once all blocks of the first have ended. Before they access global memory they
execute ``griddepcontrol.wait``: it returns once the results of the first kernel are visible. Only
the int4 GEMV loads weights before, if they are constants.

We do not trigger earlier (``griddepcontrol.launch_dependents``). An early trigger puts the
dependent's blocks where the first blocks end, many on one SM and none on others. On an H200,
networks of many kinds of kernels then took 1 to 15 % longer; a kernel that follows itself, less.

Only a kernel that waits is launched with PDL: without the wait it would read stale data.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.target import Target

#: Attribute of PrimFuncs whose kernels use PDL.
OVERLAPS = "tvmopt.overlaps"
# Launch tag for which TVM's runtime uses PDL; the spelling is TVM's.
_TAG = "tirx.use_programtic_dependent_launch"
_LAUNCH, _DYNAMIC_SHARED = "tirx.kernel_launch_params", "tirx.use_dyn_shared_memory"
#: Least compute capability with PDL.
LEAST_CAPABILITY = 90
#: CUDA statement that waits for the kernel before.
WAIT_STATEMENT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
_WAIT = "tvmopt_wait_for_kernel_before"
_SOURCE = f"""
__forceinline__ __device__ void {_WAIT}() {{
  {WAIT_STATEMENT}
}}
"""


def wait_for_kernel_before() -> Any:
    """Return a ``griddepcontrol.wait`` call; every thread executes it before global accesses."""
    return cuda_func_call(_WAIT, source_code=_SOURCE)


def waiting(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Insert the wait at the start of a lowered device function, if its GPU supports PDL.

    Before -> after: ``kernel(): body`` -> ``kernel(): wait_for_kernel_before(); body``
    """
    if not _is_kernel(func) or _waits(func) or not can_wait(func.attrs["target"]):
        return func
    wait = tirx.Evaluate(wait_for_kernel_before())
    return func.with_body(tirx.SeqStmt([wait, func.body]))


def launched_early(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark a lowered device function for launch with PDL, if it waits."""
    if not _is_kernel(func) or not _waits(func):
        return func
    tags = [str(tag) for tag in func.attrs[_LAUNCH] if str(tag) != _TAG]
    place = len(tags) - (_DYNAMIC_SHARED in tags)  # the dynamic shared memory tag must be last
    return func.with_attr(_LAUNCH, [*tags[:place], _TAG, *tags[place:]])


def can_wait(target: Target) -> bool:
    """Whether the GPU of ``target`` supports PDL."""
    arch = str(target.attrs["arch"]).removeprefix("sm_").rstrip("af")
    return int(arch) >= LEAST_CAPABILITY


def _is_kernel(func: tirx.PrimFunc) -> bool:
    return _LAUNCH in (func.attrs or {})


def _waits(func: tirx.PrimFunc) -> bool:
    """Whether ``func`` or a device function that it calls calls ``griddepcontrol.wait``."""
    found: list[ir.Call] = []

    def on_call(call: ir.Call) -> None:
        if any(isinstance(a, ir.StringImm) and WAIT_STATEMENT in str(a.value) for a in call.args):
            found.append(call)

    tvm_ffi.structural_walk(func.body, (ir.Call, on_call), order="post")
    return bool(found)

"""Find which tensor-core instructions a kernel uses, by their SASS names."""

from __future__ import annotations

import tvm_ffi
from tvm import ir

from tvmopt.device.dtypes import DTYPES
from tvmopt.kernels.cpu.intrinsics.calls import called

# wgmma names the dtype in its op; mma.sync in an argument.
_WARPGROUP = {"f16": "HGMMA", "bf16": "HGMMA", "tf32": "HGMMA", "fp8": "QGMMA", "int": "IGMMA"}
_TYPE = 3  # the argument of ``mma`` that names the dtype of A
_WHOLE = {row.tvm_mma for row in DTYPES.values() if row.is_integer}


def tensor_core_instructions(node: tvm_ffi.Object) -> set[str]:
    """Return the SASS names of all MMA: ``HMMA``, ``IMMA`` (warp), ``HGMMA``, ... (warpgroup).

    ``H`` is 16-bit float (and TF32), ``I`` integer, ``Q`` 8-bit float.
    """
    found: set[str] = set()

    def on_call(call: ir.Call) -> None:
        name = called(call)
        family, _, rest = name.partition("_")
        if family == "wgmma" and (sass := _WARPGROUP.get(rest.partition("_")[0])):
            found.add(sass)
        elif name == "mma" and len(call.args) > _TYPE:
            dtype = str(getattr(call.args[_TYPE], "value", ""))
            found.add("IMMA" if dtype in _WHOLE else "HMMA")

    tvm_ffi.structural_walk(node, (ir.Call, on_call), order="post")
    return found

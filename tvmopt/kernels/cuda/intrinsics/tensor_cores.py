"""Instructions of NVIDIA's tensor cores, read off the calls of a kernel, by their names in SASS."""

from __future__ import annotations

import tvm_ffi
from tvm import ir

from tvmopt.device.dtypes import DTYPES
from tvmopt.kernels.cpu.intrinsics.calls import called

# Of a warpgroup's instruction the operator names the type; of a warp's, an argument does.
_WARPGROUP = {"f16": "HGMMA", "bf16": "HGMMA", "tf32": "HGMMA", "fp8": "QGMMA", "int": "IGMMA"}
_TYPE = 3  # the argument of ``mma`` that names the type of A
_WHOLE = {row.tvm_mma for row in DTYPES.values() if row.is_integer}


def tensor_core_instructions(node: tvm_ffi.Object) -> set[str]:
    """What the tensor cores are told: ``HMMA``, ``IMMA`` by a warp, ``HGMMA``, ... by a warpgroup.

    ``H`` are floats of 16 bits (and TF32), ``I`` integers, ``Q`` floats of eight bits.
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

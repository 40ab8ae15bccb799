"""Run the device's passes on kernels that were generated before TVM's Relax passes."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cpu.finish import finish_function
from tvmopt.kernels.scheduled import UNFINISHED_ATTR, mark


@tvm.transform.module_pass(opt_level=0, name="FinishKernels")
class FinishKernels:
    """Finish generated kernels for their device, after all Relax passes.

    TVM's Relax passes do not know the ``Let`` that a CPU's vector math emits.

    Args:
        target: Target to compile for.
    """

    def __init__(self, target: tvm.target.Target | None) -> None:
        on_gpu = target is not None and target.kind.name == CudaArch.kind
        self._finish = mark if on_gpu else finish_function

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all functions with ``UNFINISHED_ATTR``."""
        kernels = {
            var: self._finish(func.without_attr(UNFINISHED_ATTR))
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and UNFINISHED_ATTR in (func.attrs or {})
        }
        out = mod.clone()
        out.update(tvm.IRModule(kernels))
        return out

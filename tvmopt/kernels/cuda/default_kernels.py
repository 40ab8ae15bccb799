"""TVM's default schedules for functions that no family takes."""

from __future__ import annotations

from tvm import IRModule

from tvmopt.device.cuda import CudaArch


def default_kernels(mod: IRModule, arch: CudaArch) -> IRModule:
    """Every function of ``mod`` that nothing has scheduled under TVM's default rules (dlight)."""
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(), dlight.gpu.Fallback(),
    )  # fmt: skip
    with arch.to_tvm():
        return dlight.ApplyDefaultSchedule(*rules)(mod)

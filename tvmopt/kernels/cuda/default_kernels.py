"""TVM's default (dlight) schedules for functions that no kernel family takes."""

from __future__ import annotations

from tvm import IRModule

from tvmopt.device.cuda import CudaArch


def default_kernels(mod: IRModule, arch: CudaArch) -> IRModule:
    """Apply TVM's default dlight rules to every unscheduled function of ``mod``."""
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(), dlight.gpu.Fallback(),
    )  # fmt: skip
    with arch.to_tvm():
        return dlight.ApplyDefaultSchedule(*rules)(mod)

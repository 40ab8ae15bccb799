"""TIR pipeline for CPUs: TVM's passes over TensorIR functions, followed by our own."""

from __future__ import annotations

import tvm
import tvm.s_tir  # registers the pipeline "s_tir"
from tvm.tirx import compilation_pipeline

from tvmopt.kernels.cpu.passes.x86_extrema import select_by_x86_extrema
from tvmopt.kernels.passes.clamp_indices import clamp_indices
from tvmopt.kernels.passes.each_function import change_each
from tvmopt.kernels.passes.flatten_lets import flatten_lets
from tvmopt.kernels.passes.keep_nan import keep_nan
from tvmopt.kernels.passes.keep_on_stack import keep_on_stack
from tvmopt.kernels.passes.raw_pointers import take_raw_pointers
from tvmopt.kernels.passes.split_periodic import split_periodic_loops
from tvmopt.transform.reduce_from_infinity import reduce_from_infinity

#: Value for ``tvm.compile(..., tir_pipeline=CPU_PIPELINE)`` after importing this module.
CPU_PIPELINE = "tvmopt_cpu"


def cpu_pipeline() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    """Return the passes over the module, over host functions, and over device functions."""
    lowering, host, device = compilation_pipeline.get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="CpuPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        lowered = change_each(lowering(mod), reduce_from_infinity)
        mod = clamp_indices(keep_nan(change_each(lowered, split_periodic_loops)))
        mod = change_each(mod, select_by_x86_extrema)
        mod = change_each(change_each(mod, flatten_lets), keep_on_stack)
        return take_raw_pointers(mod)

    return run, host, device


compilation_pipeline.register_tir_pipeline(CPU_PIPELINE, cpu_pipeline)

"""How a module is compiled that holds generated TIRx kernels beside scheduled TensorIR functions.

before -> after: marked functions go through TVM's "tirx" passes, all others through its "s_tir"
passes and ours for asynchronous copies, and what comes out is one module again. TVM's default
pipeline refuses TIRx kernels, and its "tirx" pipeline TensorIR blocks.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm.s_tir  # registers the pipeline "s_tir"
from tvm import tirx
from tvm.tirx import compilation_pipeline

from tvmopt.cuda.interleave import interleave_copies
from tvmopt.cuda.one_barrier import meet_once
from tvmopt.cuda.swizzle import swizzle
from tvmopt.cuda.zero_fill import fill_with_zeros
from tvmopt.schedule.gpu.splat import write_splats

from .parameters import KERNEL_ATTR

#: What ``tvm.compile(..., tir_pipeline=PIPELINE)`` takes, once this module is imported.
PIPELINE = "tvmopt_mixed"


def is_generated(func: Any) -> bool:
    """Whether ``func`` is a generated TIRx kernel."""
    return isinstance(func, tirx.PrimFunc) and KERNEL_ATTR in (func.attrs or {})


def mixed_pipeline() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    """The passes over the module, over host functions, and over device functions."""
    blocks, host, _ = compilation_pipeline.get_tir_pipeline("s_tir")
    kernels, _, device = compilation_pipeline.get_tir_pipeline("tirx")

    @tvm.transform.module_pass(opt_level=0, name="MixedPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        generated = {var: f for var, f in mod.functions.items() if is_generated(f)}
        others = {var: f for var, f in mod.functions.items() if not is_generated(f)}
        out = tvm.IRModule({}, attrs=mod.attrs)
        if others:
            lowered = write_splats(blocks(tvm.IRModule(others, attrs=mod.attrs)))
            out.update(lowered)
            for var, func in lowered.functions.items():
                if isinstance(func, tirx.PrimFunc):
                    out.update_func(out.get_global_var(var.name_hint), _finished(func))
        if generated:
            out.update(kernels(tvm.IRModule(generated, attrs=mod.attrs)))
        return out

    return run, host, device


def _finished(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered function with its steps in a better order."""
    for change in (swizzle, meet_once, interleave_copies, fill_with_zeros):
        func = change(func)
    return func


compilation_pipeline.register_tir_pipeline(PIPELINE, mixed_pipeline)

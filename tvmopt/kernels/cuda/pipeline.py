"""Compilation pipeline for modules of generated TIRx kernels and scheduled TensorIR functions.

Generated kernels go through TVM's "tirx" passes. All other functions go through its "s_tir" passes
and our passes for asynchronous copies. The results are merged into one module. TVM's default
pipeline rejects TIRx kernels, and its "tirx" pipeline rejects TensorIR blocks.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import tvm
import tvm.s_tir  # registers the pipeline "s_tir"
from tvm import tirx
from tvm.tirx import compilation_pipeline

from tvmopt.kernels.cuda.common.narrow_rounding import round_widely
from tvmopt.kernels.cuda.common.splat import write_splats
from tvmopt.kernels.cuda.hopper.parameters import KERNEL_ATTR
from tvmopt.kernels.cuda.toolchain.dependent_launch import OVERLAPS, launched_early, waiting
from tvmopt.kernels.cuda.toolchain.interleave import interleave_copies
from tvmopt.kernels.cuda.toolchain.one_barrier import remove_second_barrier
from tvmopt.kernels.cuda.toolchain.zero_fill import fill_with_zeros
from tvmopt.kernels.passes.clamp_indices import clamp_indices
from tvmopt.kernels.passes.each_function import change_each
from tvmopt.kernels.passes.keep_nan import keep_nan, keep_nan_in_source

#: Name for ``tvm.compile(..., tir_pipeline=PIPELINE)``; importing this module registers it.
PIPELINE = "tvmopt_mixed"


def is_generated(func: Any) -> bool:
    """Whether ``func`` is a generated TIRx kernel."""
    return isinstance(func, tirx.PrimFunc) and KERNEL_ATTR in (func.attrs or {})


def mixed_pipeline() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    """Return the passes for the module, for host functions, and for device functions."""
    blocks, host, _ = compilation_pipeline.get_tir_pipeline("s_tir")
    kernels, _, device = compilation_pipeline.get_tir_pipeline("tirx")

    @tvm.transform.module_pass(opt_level=0, name="MixedPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        generated, ours, others = _kinds(mod)
        out = tvm.IRModule({}, attrs=mod.attrs)
        for functions, overlaps in ((others, False), (ours, True)):
            if functions:
                lowered = blocks(tvm.IRModule(functions, attrs=mod.attrs))
                lowered = write_splats(round_widely(clamp_indices(keep_nan(lowered))))
                out.update(change_each(lowered, functools.partial(_finished, overlaps=overlaps)))
        if generated:
            # Their indices are the generator's, kept in variables: they come from no input.
            lowered = keep_nan(kernels(tvm.IRModule(generated, attrs=mod.attrs)))
            out.update(change_each(lowered, launched_early))
        return out

    return run, host, device


_Functions: TypeAlias = dict[Any, Any]


def _kinds(mod: tvm.IRModule) -> tuple[_Functions, _Functions, _Functions]:
    """Split functions into generated kernels, scheduled kernels with PDL, and all others."""
    kinds: tuple[_Functions, _Functions, _Functions] = {}, {}, {}
    for var, func in mod.functions.items():
        overlaps = isinstance(func, tirx.PrimFunc) and OVERLAPS in (func.attrs or {})
        kinds[0 if is_generated(func) else 1 if overlaps else 2][var] = func
    return kinds


def _finished(func: tirx.PrimFunc, overlaps: bool) -> tirx.PrimFunc:
    """Optimise a lowered function: barriers, copy order, zero-fill, and PDL with ``overlaps``."""
    for change in (remove_second_barrier, interleave_copies, fill_with_zeros):
        func = change(func)
    return launched_early(waiting(func)) if overlaps else func


compilation_pipeline.register_tir_pipeline(PIPELINE, mixed_pipeline)


@tvm.register_global_func("tvm_callback_cuda_postproc")
def _finished_source(source: str, _target: tvm.target.Target) -> str:
    """Postprocess the CUDA source that TVM generates."""
    return keep_nan_in_source(source)

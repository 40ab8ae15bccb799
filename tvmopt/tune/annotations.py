"""Validate tuning records: a record may only transform loops and layouts.

A record is a list of schedule instructions, but some instructions carry code. TVM links the LLVM or
C text of the annotations ``pragma_import_llvm`` and ``pragma_import_c``. The index map of
``TransformLayout`` and its padding value are expressions, and an expression may call any C
function. Records may come from an untrusted source. Hence an allowlist: only the instructions,
annotations and index arithmetic that our templates and MetaSchedule's rules emit.
"""

from __future__ import annotations

import json
from typing import Any

from tvmopt.kernels.cpu.common.nest import CUT
from tvmopt.kernels.cpu.passes.bfloat16_rounding import NATIVE
from tvmopt.kernels.cpu.passes.prefetch import PREFETCH, PREFETCH_EPILOGUE
from tvmopt.kernels.cuda.common.register_promotion import OWN
from tvmopt.kernels.cuda.toolchain.one_barrier import DOUBLE_BUFFERED

_ANNOTATIONS = frozenset(
    {
        NATIVE, CUT, PREFETCH, PREFETCH_EPILOGUE, DOUBLE_BUFFERED, OWN,
        "pragma_auto_unroll_max_step", "pragma_unroll_explicit",
        "software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages",
        "tirx.manifest_shared_memory_local_stage", "double_buffer_scope", "warp_execution",
        "buffer_dim_align",
        *(
            f"meta_schedule.{key}"
            for key in (
                "auto_tensorize", "auto_tensorize_init", "cache_type", "cooperative_fetch",
                "inline_rule", "layout_rewrite_preproc", "parallel", "random_compute_producer",
                "thread_extent_high_inclusive", "thread_extent_low_inclusive", "tiling_structure",
                "unroll_explicit", "unroll_implicit", "vectorize",
            )
        ),
    }
)  # fmt: skip
_ANNOTATE = "Annotate"
#: Allowed schedule instructions besides annotations. Excluded are instructions that let a function
#: access buffers that it does not declare.
_STEPS = frozenset(
    {
        "AddUnitLoop", "Bind", "Blockize", "CacheIndex", "CacheInplace", "CacheRead", "CacheWrite",
        "ComputeAt", "ComputeInline", "DecomposePadding", "DecomposeReduction", "EnterPostproc",
        "Fuse", "FuseReductionEpilogue", "GetChildBlocks", "GetConsumers", "GetLoops",
        "GetOutputBlocks", "GetProducers", "GetSBlock", "LoopPartition", "Merge", "PadEinsum",
        "Parallel", "RFactor", "ReIndex", "ReadAt", "ReindexCacheRead", "ReindexCacheWrite",
        "Reorder", "ReorderBlockIterVar", "ReverseComputeAt", "ReverseComputeInline",
        "RollingBuffer", "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile",
        "SamplePerfectTile", "SetScope", "Split", "StorageAlign", "Tensorize",
        "TransformBlockLayout", "TransformLayout", "Unannotate", "Unroll", "Vectorize", "WriteAt",
    }
)  # fmt: skip
#: Allowed node types of serialised IR: index maps and their arithmetic, without ``ir.Call``.
_NODES = frozenset(
    {
        "None", "bool", "int", "float", "ffi.Array", "ffi.String", "ir.FloatImm", "ir.IntImm",
        "ir.PrimType", "ir.Var", "prim.Add", "prim.Cast", "prim.FloorDiv", "prim.FloorMod",
        "prim.Max", "prim.Min", "prim.Mul", "prim.Sub", "tirx.IndexMap",
    }
)  # fmt: skip


def refusal(record: Any) -> str:
    """Return why a line of a database's records must not be replayed; empty when it may be.

    Args:
        record: The parsed line ``[workload, [trace, ...]]``. A trace begins with its instructions
            ``[name, inputs, attributes, outputs]``.
    """
    try:
        trace = record[1][0]
        for name, _inputs, attributes, _outputs in trace[0]:
            if name == _ANNOTATE:
                [key] = attributes
                if not isinstance(key, str) or key not in _ANNOTATIONS:
                    return f"it annotates {str(key)[:60]!r}"
            elif name not in _STEPS:
                return f"it holds the step {str(name)[:60]!r}"
        return _foreign_node(trace)
    except (TypeError, ValueError, IndexError, KeyError, RecursionError):
        return "its steps cannot be read"


def _foreign_node(value: Any) -> str:
    """Return why serialised IR inside ``value`` must not be loaded; empty when it may be."""
    if isinstance(value, str):
        # TVM parses each string of a trace that starts with a brace as IR.
        if not value.lstrip().startswith("{"):
            return ""
        kinds = {str(node["type"]) for node in json.loads(value)["nodes"]}
        foreign = sorted(kinds - _NODES)
        return f"an index map in it holds {foreign[0][:60]!r}" if foreign else ""
    if isinstance(value, list):
        return next(filter(None, map(_foreign_node, value)), "")
    if value is None or isinstance(value, bool | int | float):
        return ""
    raise TypeError("a trace must hold lists, texts and numbers")

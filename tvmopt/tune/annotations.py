"""Which annotations a tuning record may put into a function.

A record is a list of schedule steps. Most only change loops, but an annotation is any key with any
value: TVM links whatever LLVM or C text it finds under ``pragma_import_llvm`` or
``pragma_import_c``. So a record that comes from elsewhere may use only the keys that our templates
and MetaSchedule's rules write.
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedule.bfloat16_rounding import NATIVE
from tvmopt.schedule.nest import CUT
from tvmopt.schedule.prefetch import PREFETCH

_META_SCHEDULE = "meta_schedule."
_ALLOWED = frozenset(
    {
        NATIVE, CUT, PREFETCH, "pragma_auto_unroll_max_step", "pragma_unroll_explicit",
        "software_pipeline_stage", "software_pipeline_order", "software_pipeline_async_stages",
        "tirx.manifest_shared_memory_local_stage", "double_buffer_scope", "warp_execution",
        "buffer_dim_align",
    }
)  # fmt: skip
_ANNOTATE = "Annotate"
#: Steps of TVM's schedules that records may hold beside annotations; those are missing that let a
#: function read or write what it does not declare.
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


def refusal(record: Any) -> str:
    """Why a line of a database's records must not be replayed; empty when it may.

    Args:
        record: The line, parsed: ``[workload, [trace, ...]]``, where a trace begins with its steps
            ``[name, inputs, attributes, outputs]``.
    """
    try:
        steps = record[1][0][0]
        for name, _inputs, attributes, _outputs in steps:
            if name == _ANNOTATE:
                [key] = attributes
                if not isinstance(key, str) or not _may_annotate(key):
                    return f"it annotates {str(key)[:60]!r}"
            elif name not in _STEPS:
                return f"it holds the step {str(name)[:60]!r}"
    except (TypeError, ValueError, IndexError, KeyError):
        return "its steps cannot be read"
    return ""


def _may_annotate(key: str) -> bool:
    return key.startswith(_META_SCHEDULE) or key in _ALLOWED

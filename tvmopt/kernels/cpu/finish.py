"""TensorIR passes that every scheduled CPU function needs before it is compiled."""

from __future__ import annotations

from tvm import tirx

from tvmopt.kernels.cpu.intrinsics import with_tile_configuration
from tvmopt.kernels.cpu.intrinsics.choose import with_intrinsic_functions
from tvmopt.kernels.cpu.passes.bfloat16_bits import keep_bfloat16_bits
from tvmopt.kernels.cpu.passes.bfloat16_rounding import round_natively
from tvmopt.kernels.cpu.passes.prefetch import insert_prefetches
from tvmopt.kernels.cpu.passes.requantise import rewrite_requantise
from tvmopt.kernels.cpu.passes.vector_math import rewrite_math
from tvmopt.kernels.scheduled import marked


def finish(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add prefetches, vector math, and the functions that tensor intrinsics call.

    Args:
        scheduled: ``func`` under a schedule.
        func: The function before, whose attributes are kept.
    """
    result = round_natively(insert_prefetches(scheduled))
    result = keep_bfloat16_bits(result)
    result = rewrite_math(rewrite_requantise(result))
    return marked(with_tile_configuration(with_intrinsic_functions(result)), func)

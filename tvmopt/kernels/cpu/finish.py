"""TensorIR passes that run on every scheduled CPU function before compilation."""

from __future__ import annotations

from tvm import tirx

from tvmopt.kernels.cpu.intrinsics import with_tile_configuration
from tvmopt.kernels.cpu.intrinsics.choose import with_intrinsic_functions
from tvmopt.kernels.cpu.passes.bfloat16_bits import keep_bfloat16_bits
from tvmopt.kernels.cpu.passes.bfloat16_rounding import round_natively
from tvmopt.kernels.cpu.passes.load_before_lets import load_before_lets
from tvmopt.kernels.cpu.passes.parameter_shapes import restore_shapes
from tvmopt.kernels.cpu.passes.prefetch import insert_prefetches
from tvmopt.kernels.cpu.passes.requantise import rewrite_requantise
from tvmopt.kernels.cpu.passes.vector_math import rewrite_math
from tvmopt.kernels.scheduled import mark, marked


def finish(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Run the CPU passes: prefetch, bfloat16, requantize, vector math, intrinsics, shapes.

    Args:
        scheduled: ``func`` after scheduling.
        func: The function before scheduling; its attributes are kept.

    Returns:
        The function, marked as scheduled and ready to compile.
    """
    return marked(restore_shapes(_passes(scheduled), func), func)


def finish_function(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Run the CPU passes on a generated kernel, and mark it as scheduled."""
    return mark(_passes(kernel))


def _passes(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    result = round_natively(insert_prefetches(kernel))
    result = keep_bfloat16_bits(result)
    result = rewrite_math(rewrite_requantise(result))
    result = result.with_body(load_before_lets(result.body))
    return with_tile_configuration(with_intrinsic_functions(result))

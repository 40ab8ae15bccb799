"""TensorIR passes that every scheduled CUDA function needs before it is compiled."""

from __future__ import annotations

from tvm import tirx

from tvmopt.kernels.cuda.common.register_promotion import promote_to_registers
from tvmopt.kernels.cuda.int4.unpack import rewrite_int4
from tvmopt.kernels.scheduled import marked


def finish(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Promote thread-local buffers to registers, and unpack int4 by bit operations.

    Args:
        scheduled: ``func`` after scheduling.
        func: The original function, whose attributes are kept.
    """
    return marked(rewrite_int4(promote_to_registers(scheduled)), func)

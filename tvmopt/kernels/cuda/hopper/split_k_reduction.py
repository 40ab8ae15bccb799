"""Split-K reduction kernel: add the partial sums in the workspace, apply the epilogue, store."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import (
    as_register,
    const,
    quotient,
    remainder,
    store_four,
    store_pair,
    when,
)
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.problem import ceil_div
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before

_THREADS = 128
# The unrolling issues the loads of 16 partial sums before their additions.
_SUM = """
__forceinline__ __device__ void {name}(void* to, const void* from, long long part) {{
  {kind} sum[{count}] = {{}};
  #pragma unroll 16
  for (int p = 0; p < {parts}; ++p) {{
    {kind} one[{count}];
    __builtin_memcpy(one, __builtin_assume_aligned(({kind}*)from + p * part, {size}), {size});
    for (int e = 0; e < {count}; ++e) sum[e] += one[e];
  }}
  __builtin_memcpy(to, sum, {size});
}}
"""


def split_k_reduction(
    config: HopperConfig, partial: tirx.Buffer, shape: Sequence[int], accumulator: str,
    out_dtype: str, epilogue: Epilogue, parameters: Parameters,
) -> None:  # fmt: skip
    """Emit the kernel that reduces the partial results and applies the epilogue.

    Args:
        config: The configuration; ``split_k`` partial results are reduced.
        partial: Workspace of shape ``(split_k, *shape)``.
        shape: Output shape as the epilogue indexes it.
        accumulator: Dtype of the workspace, float32 or int32.
        out_dtype: Output dtype.
        epilogue: The epilogue.
        parameters: The output and the epilogue's inputs.
    """
    epilogue, total, parts = epilogue.narrowed, math.prod(shape), config.split_k
    # Small outputs: one element a thread, so that more threads keep more loads in flight.
    few = total < config.arch.sms * _THREADS * 8
    count = 1 if few else next(v for v in (4, 2, 1) if shape[-1] % v == 0)
    row = dtypes.dtype(accumulator)
    function = f"sum_{parts}_of_{count}_{row.ptx}"
    source = _SUM.format(name=function, kind=row.cuda, count=count, parts=parts, size=4 * count)
    items = total // count
    with build.attr({"tirx.device_entry": True}):
        block = T.cta_id([ceil_div(items, _THREADS)])
        thread = T.thread_id([_THREADS])
        build.evaluate(wait_for_kernel_before())
        item = block * _THREADS + thread
        with when(item < items):
            first = build.Bind(item * count)
            sums = build.alloc_local([count], accumulator)
            flat = build.decl_buffer((parts * total,), accumulator, data=partial.data)
            build.evaluate(
                T.cuda.func_call(
                    function, sums.ptr_to([0]), flat.ptr_to([first]), const(total, "int64"),
                    source_code=source,
                )
            )  # fmt: skip
            place: list[Expr] = []
            rest = first
            for extent in reversed(shape[1:]):
                place.insert(0, remainder(rest, extent))
                rest = quotient(rest, extent)
            place.insert(0, rest)
            buffers = list(zip(epilogue.inputs, parameters.inputs, strict=True))
            done = [
                epilogue.at(sums[e], [*place[:-1], place[-1] + e if e else place[-1]], buffers)
                for e in range(count)
            ]
            out = build.decl_buffer(tuple(shape), out_dtype, data=parameters.out.data)
            registers = [as_register(d, out_dtype) for d in done]
            if count == 1:
                build.buffer_store(out, done[0], place)
            elif count == 2:
                store_pair(out.ptr_to(place), out_dtype, *registers)
            else:
                store_four(out.ptr_to(place), out_dtype, registers)

"""Predicated cp.async without a branch: zero-fill by the source size operand.

TVM lowers a predicated copy to a branch: cp.async, or a store of zeros. But cp.async takes the
number of source bytes and fills the rest with zeros.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

_COPY = "tirx.s_tir.cp_async_raw"
_SOURCE = """
__forceinline__ __device__ void {name}(void* to, int to_offset, void* from, int from_offset,
                                       int inside) {{
  const unsigned int address =
      __cvta_generic_to_shared(static_cast<unsigned char*>(to) + to_offset * {to_size});
  const void* source = static_cast<unsigned char*>(from) + from_offset * {from_size};
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
               :: "r"(address), "l"(source), "r"(inside ? {size} : 0));
}}
"""


def fill_with_zeros(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace predicated copies of ``func``, a lowered device function, by zero-filling cp.async.

    Before -> after::

        if inside: cp.async [to], [from], 16
        else: st.shared [to], 0

        cp.async [to], [from], 16, inside ? 16 : 0
    """
    body = tvm_ffi.structural_map(func.body, (ir.Call, _on_call), order="post")
    return func.with_body(body)


def _on_call(call: ir.Call) -> ir.Expr:
    """Return the zero-filling copy in place of a predicated one."""
    if getattr(call.op, "name", "") != _COPY or len(call.args) != 6:
        return call
    to, to_offset, source, source_offset, size, inside = call.args
    to_size, from_size, count = _element(to), _element(source), int(size)
    name = f"tvmopt_cp_async_{count}_{to_size}_{from_size}"
    return cuda_func_call(
        name,
        to,
        to_offset,
        source,
        source_offset,
        inside,
        source_code=_SOURCE.format(
            name=name,
            to_size=to_size,
            from_size=from_size,
            size=count,
            cache="cg" if count == 16 else "ca",
        ),
    )


def _element(pointer: ir.Expr) -> int:
    """Return the bytes of an element that ``pointer`` points at, the unit of its offset."""
    dtype = getattr(getattr(pointer.ty, "element_type", None), "dtype", None)
    return tvm_ffi.dtype(str(dtype)).itemsize if dtype is not None else 1

"""Vectors of one byte, over and over, are written as vectors of words.

TVM's CUDA code of such a vector names every byte, ``make_int4(-128, -128, ...)``, which takes four
words: it does not compile.

before -> after::

    Broadcast(int8(-128), 16)      reinterpret("int8x16", Broadcast(int32(0x80808080), 4))
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

_BYTES = ("int8", "uint8")
_LANES = (8, 16)  # of fewer, TVM writes one word by itself


def byte_vectors(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every TensorIR function of a module whose loops have become vectors."""
    updates = {}
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.Broadcast, _words), order="post")
            updates[var] = func.with_body(body)
    out = mod.clone()
    out.update(tvm.IRModule(updates))
    return out


def _words(vector: tirx.Broadcast) -> ir.Expr:
    byte = vector.value
    if not isinstance(byte, tirx.IntImm) or str(byte.ty.dtype) not in _BYTES:
        return vector
    lanes = int(vector.lanes)
    if lanes not in _LANES:
        return vector
    word = int.from_bytes(bytes([int(byte.value) % 256]) * 4, "little", signed=True)
    words = tirx.Broadcast(tirx.const(word, "int32"), lanes // 4)
    return tirx.reinterpret(f"{byte.ty.dtype}x{lanes}", words)

"""Rewrite broadcasts (splats) that TVM's CUDA code generator emits wrongly.

CUDA vectors have at most four components. TVM keeps 16 bytes in four 32-bit words and eight floats
in four 64-bit words. But its code for a broadcast repeats the value for every element,
``make_int4(-128, ... sixteen times)``, which does not compile.

Before -> after, for 16 bytes and for eight floats::

    Broadcast(int8(-128), 16)     reinterpret("int8x16", Broadcast(int32(0x80808080), 4))
    Broadcast(x, 8)               reinterpret("float32x8", Broadcast(twice, 4)),
                                  where both halves of twice have the bits of x
"""

from __future__ import annotations

import struct

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt.device.dtypes import BYTE_INTEGERS
from tvmopt.kernels.passes.each_function import change_each

_WORDS = ("float32", "int32", "uint32")


def write_splats(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every PrimFunc of a module, after vectorisation."""

    def change(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(
            tvm_ffi.structural_map(func.body, (tirx.Broadcast, _packed), order="post")
        )

    return change_each(mod, change)


def _packed(vector: tirx.Broadcast) -> ir.Expr:
    """Return the broadcast in words, if TVM would emit ``vector`` wrongly."""
    value, lanes = vector.value, int(vector.lanes)
    dtype = str(value.ty.dtype)
    if dtype in BYTE_INTEGERS and lanes in (8, 16):  # for four lanes TVM emits the word itself
        packed = tirx.Broadcast(_word(value), lanes // 4)
    elif dtype in _WORDS and lanes in (6, 8):
        packed = tirx.Broadcast(_twice(value), lanes // 2)
    else:
        return vector
    return tirx.reinterpret(f"{dtype}x{lanes}", packed)


def _word(byte: ir.Expr) -> ir.Expr:
    """Return an int32 with the byte in all four bytes."""
    if isinstance(byte, tirx.IntImm):
        bits = bytes([int(byte.value) % 256]) * 4
        return tirx.const(int.from_bytes(bits, "little", signed=True), "int32")
    alone = tirx.reinterpret("uint8", byte) if str(byte.ty.dtype) == "int8" else byte
    return alone.astype("int32") * tirx.const(0x01010101, "int32")


def _twice(word: ir.Expr) -> ir.Expr:
    """Return a 64-bit integer with the 32-bit value in both halves."""
    if isinstance(word, tirx.FloatImm | tirx.IntImm):  # reinterpret needs an addressable value
        kind = "<f" if isinstance(word, tirx.FloatImm) else "<I"
        number = word.value if kind == "<f" else int(word.value) % 2**32
        twice = struct.pack(kind, number) * 2
        return tirx.const(int.from_bytes(twice, "little", signed=True), "int64")
    bits = word if str(word.ty.dtype) == "uint32" else tirx.reinterpret("uint32", word)
    wide = bits.astype("uint64")
    return (wide << tirx.const(32, "uint64")) | wide

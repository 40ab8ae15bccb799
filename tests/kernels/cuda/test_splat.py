"""Broadcasts are packed into wider words where TVM's CUDA code for them is wrong.

Tests compare the emitted bits and do not run the code. Splats that TVM emits correctly stay.
"""

from __future__ import annotations

import shutil
import struct

import pytest
import tvm
from tvm import te, tirx

from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.common.splat import _packed
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.kernels.first_choice import schedule_function

A100 = GPUS["nvidia-a100"]


def bits(vector) -> bytes:
    """Return the elements of a packed broadcast."""
    words = vector.args[0]
    size = 4 if str(words.value.ty.dtype) == "int32" else 8
    return int(words.value.value).to_bytes(size, "little", signed=True) * int(words.lanes)


@pytest.mark.parametrize(
    ("value", "dtype", "code"),
    [
        (-128, "int8", "b"),
        (-1, "int8", "b"),
        (0, "int8", "b"),
        (200, "uint8", "B"),
        (0.0, "float32", "f"),
        (-3.4028234663852886e38, "float32", "f"),
        (1.5, "float32", "f"),
        (-7, "int32", "i"),
        (0xF0000000, "uint32", "I"),
    ],
)
def test_numbers_keep_their_bits(value: float, dtype: str, code: str) -> None:
    lanes = 16 if code in "bB" else 8
    got = _packed(tirx.Broadcast(tirx.const(value, dtype), lanes))
    assert str(got.ty.dtype) == f"{dtype}x{lanes}"
    assert bits(got) == struct.pack(f"<{lanes}{code}", *[value] * lanes)


@pytest.mark.parametrize(
    ("dtype", "lanes"), [("int8", 4), ("float16", 8), ("bfloat16", 8), ("int32", 4), ("float32", 2)]
)
def test_what_tvm_writes_right_stays(dtype: str, lanes: int) -> None:
    vector = tirx.Broadcast(tirx.const(3, dtype), lanes)
    assert _packed(vector).same_as(vector)


@pytest.mark.parametrize(("dtype", "lanes"), [("int8", 16), ("uint8", 8), ("float32", 8)])
def test_values_that_are_read_are_packed_as_they_run(dtype: str, lanes: int) -> None:
    got = _packed(tirx.Broadcast(tirx.Var("x", dtype), lanes))
    assert str(got.ty.dtype) == f"{dtype}x{lanes}"
    assert int(got.args[0].lanes) == (lanes // 4 if "int8" in dtype else lanes // 2)


def padded(dtype: str, value: float) -> tirx.PrimFunc:
    x = te.placeholder((1, 4, 4, 64), dtype, "x")
    y = te.compute(
        (1, 6, 6, 64),
        lambda n, h, w, c: tirx.if_then_else(
            tirx.all(h >= 1, h < 5, w >= 1, w < 5), x[n, h - 1, w - 1, c], tirx.const(value, dtype)
        ),
    )
    return te.create_prim_func([x, y])


def largest(dtype: str) -> tirx.PrimFunc:
    """Pooling whose accumulators are vectors of eight floats at most."""
    x = te.placeholder((1, 114, 114, 64), dtype, "x")
    i, j = te.reduce_axis((0, 3), "i"), te.reduce_axis((0, 3), "j")
    y = te.compute(
        (1, 56, 56, 64), lambda n, h, w, c: te.max(x[n, 2 * h + i, 2 * w + j, c], axis=[i, j])
    )
    return te.create_prim_func([x, y])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    "func",
    [padded("int8", -128), padded("uint8", 7), largest("float32"), largest("int8")],
    ids=["int8", "uint8", "pool-float32", "pool-int8"],
)
def test_kernels_with_such_vectors_compile(func: tirx.PrimFunc) -> None:
    made = schedule_function(func, A100)
    assert made.hint is not None, made.rule
    with embed_cubins(A100):
        assert isinstance(build_kernels({"main": made.func}, A100), tvm.runtime.Module)

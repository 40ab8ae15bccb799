"""A byte over and over is a word over and over; other vectors stay."""

from __future__ import annotations

import shutil

import pytest
import tvm
from tvm import te, tirx

from tvmopt.arch.gpus import GPUS
from tvmopt.cuda.modules import embed_cubins
from tvmopt.policy.gpu.first_choice import first_kernel
from tvmopt.schedule.gpu.apply import build_kernels
from tvmopt.schedule.gpu.byte_vectors import _words

A100 = GPUS["nvidia-a100"]


@pytest.mark.parametrize(("byte", "dtype"), [(-128, "int8"), (-1, "int8"), (0, "int8"),
                                             (200, "uint8")])  # fmt: skip
@pytest.mark.parametrize("lanes", [8, 16])
def test_words_hold_the_byte(byte: int, dtype: str, lanes: int) -> None:
    got = _words(tirx.Broadcast(tirx.const(byte, dtype), lanes))
    assert str(got.ty.dtype) == f"{dtype}x{lanes}"
    words = got.args[0]
    assert int(words.lanes) == lanes // 4 and str(words.value.ty.dtype) == "int32"
    assert int(words.value.value).to_bytes(4, "little", signed=True) == bytes([byte % 256]) * 4


@pytest.mark.parametrize(("dtype", "lanes"), [("int8", 4), ("float16", 8), ("int32", 4)])
def test_what_tvm_writes_itself_stays(dtype: str, lanes: int) -> None:
    vector = tirx.Broadcast(tirx.const(3, dtype), lanes)
    assert _words(vector).same_as(vector)


def padded(dtype: str, value: int) -> tirx.PrimFunc:
    x = te.placeholder((1, 4, 4, 64), dtype, "x")
    y = te.compute(
        (1, 6, 6, 64),
        lambda n, h, w, c: tirx.if_then_else(
            tirx.all(h >= 1, h < 5, w >= 1, w < 5), x[n, h - 1, w - 1, c], tirx.const(value, dtype)
        ),
    )
    return te.create_prim_func([x, y])


@pytest.mark.parametrize(("dtype", "value"), [("int8", -128), ("int8", 0), ("uint8", 7)])
def test_padding_with_bytes_compiles(dtype: str, value: int) -> None:
    made = first_kernel(padded(dtype, value), A100)
    assert not isinstance(made, str) and made[1].vector > 4
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    with embed_cubins(A100):
        assert isinstance(build_kernels({"main": made[0]}, A100), tvm.runtime.Module)

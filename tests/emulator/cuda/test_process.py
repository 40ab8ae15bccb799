"""Tests of calls of emulated kernels: arguments, errors, and recovery after an error."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from benchmarks.cuda_rows import row
from tests.emulator.cuda import run
from tests.emulator.cuda.tensor_map import encode_tiled
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ArtifactError, BuildError, ConfigError, LimitError
from tvmopt.kernels.first_choice import schedule_function

H200 = GPUS["nvidia-h200"]
_DIES = """
__forceinline__ __device__ float tvmopt_test(float x) { *(volatile int*)0 = 1; return x; }
"""
_IS_UNKNOWN = """
__forceinline__ __device__ float tvmopt_test(float x) { asm volatile("trap;"); return x; }
"""
_DOES_NOT_COMPILE = """
__forceinline__ __device__ float tvmopt_test(float x) { return unknown(x); }
"""


def _cast(of: str, to: str, count: int = 65536) -> tirx.PrimFunc:
    x = te.placeholder((count,), of, "x")
    made = te.create_prim_func([x, te.compute((count,), lambda i: x[i].astype(to), "y")])
    kernel = schedule_function(made, H200).func
    return kernel


def _calling(text: str) -> tirx.PrimFunc:
    x = te.placeholder((64,), "float32", "x")

    def element(i: tirx.Var) -> object:
        return tirx.call_intrin("float32", "tirx.cuda.func_call", "tvmopt_test", x[i], text)

    made = te.create_prim_func([x, te.compute((64,), element, "y")])
    kernel = schedule_function(made, H200).func
    return kernel


@pytest.mark.sample(1)
@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_casts_round_every_value_as_numpy_does(narrow: str) -> None:
    dtype = np.dtype(narrow)
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    [wide] = run(_cast(narrow, "float32"), [every], [np.zeros(65536, np.float32)], H200)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    rng = np.random.default_rng(0)
    given = (rng.standard_normal(65536) * 10.0 ** rng.integers(-9, 6, 65536)).astype(np.float32)
    given[:65535] = np.where(rng.random(65535) < 0.5, (wide[:-1] + wide[1:]) / 2, given[:65535])
    with np.errstate(over="ignore"):
        want = given.astype(dtype)
    [got] = run(_cast("float32", narrow), [given], [np.zeros(65536, dtype)], H200)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="order must be one of early, late, chance, but got 'x'"):
        run(_cast("float32", "float16"), [], [], H200, order="x")


def test_arguments_of_another_shape_are_refused() -> None:
    with pytest.raises(ArtifactError, match=r"the emulated kernel fails: .*shape"):
        run(_cast("float32", "float16", 64), [np.zeros(32, "f4")], [np.zeros(64, "f2")], H200)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (_DIES, ArtifactError, "but the process that ran it died with -11"),
        (_IS_UNKNOWN, ConfigError, "must be one that the emulator knows, but got 'trap'"),
        (_DOES_NOT_COMPILE, BuildError, "cannot be emulated: .*unknown"),
    ],
    ids=["it dies", "an unknown instruction", "it does not compile"],
)
def test_an_error_is_reported_and_the_next_call_works(text, error, said) -> None:
    with pytest.raises(error, match=said):
        run(_calling(text), [np.zeros(64, "f4")], [np.zeros(64, "f4")], H200)
    numbers = np.arange(64, dtype="f4")
    [got] = run(_cast("float32", "float16", 64), [numbers], [np.zeros(64, "f2")], H200)
    np.testing.assert_array_equal(got, numbers)


def test_a_call_has_a_time_limit() -> None:
    func = row("matmul_nt-2048-2048-2048-float16").func
    kernel = schedule_function(func, H200).func
    matrix = np.zeros((2048, 2048), np.float16)
    with pytest.raises(LimitError, match=r"must end within 0.5 s, but did not"):
        run(kernel, [matrix, matrix], [matrix], H200, timeout_s=0.5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strides": [50]}, "strides must be multiples of 16 bytes, but got"),
        ({"box": [64, 257]}, "a box is of 1 to 256, but got"),
        ({"box": [128, 8]}, "a box's rows must fit swizzle 3, but got 256"),
        ({"steps": [1, 9]}, "steps must be 1 to 8, but got"),
    ],
)
def test_invalid_tensor_maps_are_refused(changed: dict[str, list[int]], said: str) -> None:
    place, base = np.zeros(256, np.uint8), np.zeros(64, np.float16)
    address = (place.ctypes.data + 63) // 64 * 64
    told = {"extents": [64, 64], "strides": [128], "box": [64, 8], "steps": [1, 1], **changed}
    numbers = [n for name in ("extents", "strides", "box", "steps") for n in told[name]]
    with pytest.raises(ConfigError, match=said):
        encode_tiled(address, "float16", 2, base.ctypes.data // 16 * 16, *numbers, 0, 3, 2, 0)

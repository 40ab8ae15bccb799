"""The array comparison on the GPU, run here on the CPU, and inputs of any size and dtype."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvmopt.device.dtypes import dtype as dtype_of
from tvmopt.measure import cuda_check
from tvmopt.measure.check import WrongResultError
from tvmopt.measure.cuda_check import PARTS, check_equal, plain_difference, repeated

COUNT = 2 * PARTS + 7
FLOATS = ("float16", "bfloat16", "float32", "float64")


def filled(shape, dtype, seed, positive) -> np.ndarray:
    return cuda_check.filled(shape, dtype, seed, positive, tvm.cpu()).numpy()


@pytest.fixture(scope="module")
def compare():
    """Return ``compare(got, wanted)``, which raises like ``check_equal`` on a GPU."""
    built = {}

    def run(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
        if dtype not in built:
            func = plain_difference(COUNT, dtype).with_attr("global_symbol", "main")
            target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
            built[dtype] = tvm.tirx.build(tvm.IRModule({"main": func}), target=target)["main"]
        device = tvm.cpu()
        monkey = pytest.MonkeyPatch()
        monkey.setattr(tvm.runtime, "cuda", lambda index: device)
        try:
            tensors = (tvm.runtime.tensor(got), tvm.runtime.tensor(wanted))
            check_equal(built[dtype], *tensors, dtype_of(dtype).kernel_tolerance)
        finally:
            monkey.undo()

    return run


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int32"])
def test_what_is_equal_but_for_rounding_passes(compare, dtype) -> None:
    wanted = filled((COUNT,), dtype, 1, False)
    got = wanted
    if dtype in FLOATS:
        got = (wanted.astype("float64") * (1 + 1e-10)).astype(wanted.dtype)
    compare(got, wanted, dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32"])
@pytest.mark.parametrize("place", [0, PARTS, COUNT - 1])
def test_one_wrong_element_fails_wherever_it_is(compare, dtype, place) -> None:
    wanted = filled((COUNT,), dtype, 2, False)
    got = wanted.copy()
    got[place] = got[place] + np.asarray(1).astype(got.dtype)
    with pytest.raises(WrongResultError, match="wrong result: off by"):
        compare(got, wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_equals_only_its_like(compare, dtype, value) -> None:
    wanted = filled((COUNT,), dtype, 3, False)
    got = wanted.copy()
    got[5] = np.asarray(value).astype(got.dtype)
    with pytest.raises(WrongResultError):
        compare(got, wanted, dtype)
    with pytest.raises(WrongResultError):
        compare(wanted, got, dtype)
    compare(got, got.copy(), dtype)


@pytest.mark.parametrize("count", [1, 6, 7, 8, 50, 64])
def test_what_is_repeated_fills_the_whole(count) -> None:
    got = repeated(np.arange(7, dtype="float16"), (count,), "float16", tvm.cpu()).numpy()
    np.testing.assert_array_equal(got, np.resize(np.arange(7), count))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint32", "bool"])
def test_inputs_have_their_shape_and_type(dtype) -> None:
    array = filled((1003, 1001), dtype, 4, True)
    assert array.shape == (1003, 1001) and array.dtype == dtype_of(dtype).numpy
    assert len(np.unique(array[:50].astype("float64"))) > 1
    if dtype.startswith(("float", "bfloat")):
        assert float(array.astype("float64").min()) > 0

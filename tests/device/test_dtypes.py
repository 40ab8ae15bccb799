"""The dtype table agrees with NumPy, ml_dtypes, ONNX and TVM, and with itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm

from tvmopt.choices import LOW_DTYPES
from tvmopt.device import dtypes
from tvmopt.device.dtypes import DTYPES, DType, dtype
from tvmopt.errors import ConfigError

ROWS = pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
FLOATS = pytest.mark.parametrize(
    "row", [r for r in DTYPES.values() if r.is_float], ids=lambda r: r.name
)


@ROWS
def test_sizes_are_those_of_numpy_and_tvm(row: DType) -> None:
    assert row.numpy.itemsize * 8 == max(row.bits, 8)
    assert row.numpy.name == row.name
    assert tvm.DataType(row.name).bits == row.bits
    assert row.itemsize == dtypes.itemsize(row.name) == row.bits / 8


@ROWS
def test_kind_is_that_of_numpy(row: DType) -> None:
    zero = np.zeros((), row.numpy)
    assert row.kind in ("float", "int", "uint", "bool")
    if row.numpy.kind != "V":  # dtypes of ml_dtypes
        assert row.numpy.kind == {"float": "f", "int": "i", "uint": "u", "bool": "b"}[row.kind]
    else:
        assert row.ml_dtypes and type(zero[()]).__name__ == row.name


@FLOATS
def test_floats_have_the_mantissa_of_numpy(row: DType) -> None:
    assert row.mantissa_bits == ml_dtypes.finfo(row.numpy).nmant


@pytest.mark.parametrize("name", dtypes.FLOATS)
def test_ieee_floats_have_the_bits_of_infinity(name: str) -> None:
    row = dtype(name)
    bits = np.array([np.inf, -np.inf, np.nan], row.numpy).view(row.bits_dtype)
    assert row.infinity_bits == bits[0] == bits[1] & row.magnitude_mask
    assert bits[2] & row.magnitude_mask > row.infinity_bits


@pytest.mark.parametrize("name", dtypes.names(lambda row: row.is_integer))
def test_integers_have_the_range_of_numpy(name: str) -> None:
    info = ml_dtypes.iinfo(dtype(name).numpy)
    assert (dtype(name).lowest, dtype(name).highest) == (info.min, info.max)


def test_float32_holds_integers_up_to_its_significant_bits() -> None:
    exact = 2 ** dtype("float32").significant_bits
    assert int(np.float32(exact - 1)) == exact - 1 and int(np.float32(exact + 1)) != exact + 1


@ROWS
def test_dtypes_that_a_row_names_are_in_the_table(row: DType) -> None:
    accumulator = dtype(row.accumulator)
    assert accumulator.accumulator == row.accumulator
    assert accumulator.significant_bits >= row.significant_bits or row.kind == "bool"
    assert set(row.exact_in) <= set(DTYPES)
    assert row.buffer_dtype in ("", row.bits_dtype)


@ROWS
def test_exact_dtypes_hold_every_value(row: DType) -> None:
    if row.exact_in and row.bits <= 16:
        every = np.arange(1 << row.bits, dtype=f"uint{row.bits}").view(row.numpy)
        for name in row.exact_in:
            again = every.astype(dtype(name).numpy).astype(row.numpy)
            finite = np.isfinite(every.astype(np.float64))
            np.testing.assert_array_equal(again[finite], every[finite])


@ROWS
def test_onnx_types_have_the_same_numpy_type(row: DType) -> None:
    if row.onnx:
        assert onnx.helper.tensor_dtype_to_np_dtype(row.onnx) == row.numpy


@ROWS
def test_vector_lanes_hold_an_element(row: DType) -> None:
    assert row.lane_bits >= row.bits and row.lane_bits in (8, 16, 32, 64)


@pytest.mark.parametrize("name", LOW_DTYPES)
def test_a_dtype_of_conversions_says_how_good_they_must_be(name: str) -> None:
    row = dtype(name)
    assert 0 < row.min_cosine < 1 and 0 < row.cosine_loss < 0.1 and row.cpu_rates
    assert row.is_integer or 0 < row.kernel_tolerance < row.model_tolerance


def test_sets_of_dtypes() -> None:
    assert LOW_DTYPES == ("float16", "bfloat16", "int8")
    assert dtypes.HALF_FLOATS == ("float16", "bfloat16")
    assert dtypes.BYTE_INTEGERS == ("int8", "uint8")
    assert set(dtypes.WIDE_FLOATS) == {"float32", "float64"}
    assert set(dtypes.FLOATS) == {*dtypes.HALF_FLOATS, *dtypes.WIDE_FLOATS}


def test_elements_have_sizes() -> None:
    sizes = {"float16": 2, "int4": 0.5, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "int64": 8}
    assert {name: dtypes.itemsize(name) for name in sizes} == sizes


@pytest.mark.parametrize("name", ["bfloat", "float32x4", "handle", ""])
def test_unknown_dtypes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype must be one of .*bfloat16.*, but got '{name}'"):
        dtype(name)


def test_the_table_imports_no_numpy(run_python) -> None:
    code = (
        "import sys\n"
        "from tvmopt.device import dtypes\n"
        "assert not {'numpy', 'ml_dtypes', 'onnx', 'tvm'} & set(sys.modules)\n"
        "assert dtypes.dtype('bfloat16').numpy.itemsize == 2\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr

"""Max pooling of 16-bit floats on a CPU compares in float32, clamps indices and rounds nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.libraries import loaded
from tests.transform.attention.graphs import Emit, module
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower

_TARGET = resolve_target("host", 1)
_CASES = {
    "edges": ((1, 8, 8, 16), {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "layout": "NHWC"}),
    "strided": (
        (2, 14, 9, 32),
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 0, 0, 1), "layout": "NHWC"},
    ),
    "wide window": (
        (1, 6, 7, 16),
        {"pool_size": (5, 4), "padding": (4, 3, 2, 3), "layout": "NHWC"},
    ),
    "ceil": (
        (1, 13, 12, 32),
        {"pool_size": (3, 2), "strides": (2, 3), "ceil_mode": True, "layout": "NHWC"},
    ),
    "dilated": ((1, 9, 9, 16), {"pool_size": (3, 3), "dilation": (2, 2), "layout": "NHWC"}),
    "dilated edges": (
        (1, 9, 9, 16),
        {
            "pool_size": (3, 3),
            "dilation": (2, 2),
            "padding": (1, 1, 1, 1),
            "layout": "NHWC",
        },
    ),
    "odd channels": ((1, 7, 7, 23), {"pool_size": (3, 3), "padding": (1, 1), "layout": "NHWC"}),
    "NCHW": ((1, 8, 9, 7), {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True}),
    "1d": ((2, 4, 11), {"pool_size": (3,), "strides": (2,)}),
    "1d channels last": ((2, 11, 16), {"pool_size": (3,), "padding": (1, 1), "layout": "NWC"}),
    "3d": ((1, 2, 5, 6, 4), {"pool_size": (2, 3, 2)}),
    "3d channels last": (
        (1, 5, 6, 4, 16),
        {"pool_size": (2, 3, 2), "padding": (1, 1, 0, 1, 1, 1), "layout": "NDHWC"},
    ),
}


def _pooled(shape: tuple[int, ...], dtype: str, **attributes: object) -> tvm.IRModule:
    pool = {4: relax.op.nn.max_pool1d, 5: relax.op.nn.max_pool2d, 6: relax.op.nn.max_pool3d}
    operator = pool[len(shape) + 1]

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        narrow = emit(relax.op.astype(x, dtype))
        return relax.op.astype(emit(operator(narrow, **attributes)), "float32")

    return lower(module(body, (shape, "float32")), _TARGET.to_tvm())


def _compared(mod: tvm.IRModule) -> set[str]:
    """Return the floats in which the functions of a module compare."""
    found: set[str] = set()
    for _, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(
                func.body, (tirx.Max, lambda node: found.add(str(node.ty.dtype)))
            )
    return {dtype for dtype in found if "float" in dtype}


def _values(shape: tuple[int, ...], kind: str, dtype: type) -> np.ndarray:
    """Return values of ``dtype``, as float32: many equal ones, zeros of both signs."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    x = np.where(rng.random(shape) < 0.2, np.copysign(0, x), x).astype(np.float32)
    if kind == "not finite":
        for value, share in ((np.nan, 0.3), (-np.inf, 0.5), (np.inf, 0.02)):
            x[rng.random(shape) < share] = value
    return x.astype(dtype).astype(np.float32)


def _running(x: np.ndarray, count: tuple[int, ...], attributes: dict[str, Any]) -> np.ndarray:
    """Return the maxima of (N, ..., C) in the order of the taps: a NaN stays if it is the last."""
    size, axes = attributes["pool_size"], len(attributes["pool_size"])
    strides = attributes.get("strides", (1,) * axes)
    dilation = attributes.get("dilation", (1,) * axes)
    before = attributes.get("padding", (0,) * axes)[:axes]
    most = np.full((x.shape[0], *count, x.shape[-1]), -np.inf, np.float32)
    for window in np.ndindex(*count):
        for tap in np.ndindex(*size):
            at = [
                w * s + t * d - b
                for w, s, t, d, b in zip(window, strides, tap, dilation, before, strict=True)
            ]
            if all(0 <= i < extent for i, extent in zip(at, x.shape[1:-1], strict=True)):
                so_far, value = most[:, *window], x[:, *at]
                most[:, *window] = np.where(so_far > value, so_far, value)
    return most


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["finite", "not finite"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("case", _CASES)
def test_the_largest_value_is_exact(case, dtype, kind, tmp_path):
    """Bits are equal, also of zeros and where a window loses a NaN."""
    shape, attributes = _CASES[case]
    narrow = _pooled(shape, dtype.__name__, **attributes)
    if dtype is ml_dtypes.bfloat16:
        assert _compared(narrow) == {"float32"}
    x = _values(shape, kind, dtype)
    if case == "dilated edges":  # a padded copy: padding is -3.4e38
        x[x == -np.inf] = -1
    build_library(narrow, _TARGET, tmp_path / "pool.so")
    got = loaded(tmp_path / "pool.so")(x)[0]
    if not attributes.get("layout", "NCHW").endswith("C"):
        x, got = np.moveaxis(x, 1, -1), np.moveaxis(got, 1, -1)
    want = _running(x, got.shape[1:-1], attributes)
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(want[number]))


def test_edges_are_clamped_indices_where_windows_contain_them():
    def conditions(case: str) -> bool:
        shape, attributes = _CASES[case]
        text = _pooled(shape, "bfloat16", **attributes).script()
        return "if_then_else" in text

    assert not conditions("edges")
    assert not conditions("ceil")
    assert conditions("dilated edges")  # the padding's neighbour may be outside of the window
    assert conditions("NCHW") == conditions("dilated edges")


def test_float16_stays_on_cpus_that_compare_it():
    def compared(target: str) -> set[str]:
        def body(emit: Emit, x: relax.Var) -> relax.Expr:
            return emit(relax.op.nn.max_pool2d(x, (2, 2), layout="NHWC"))

        graph = module(body, ((1, 4, 4, 8), "float16"))
        return _compared(lower(graph, resolve_target(target, 1).to_tvm()))

    assert compared("sapphirerapids") == {"float16"}
    assert compared("x86-64-v3") == {"float32"}

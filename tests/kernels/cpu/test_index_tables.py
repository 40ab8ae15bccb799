"""Resize with index and weight tables, in NHWC and NCHW."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.cpu.harness import ARCH, NARROW, check, lower, prim_funcs
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.emit import emit

op, nn = relax.op, relax.op.nn


def _resize(size, layout: str, method: str = "linear", mode: str = "half_pixel"):
    return lambda x: op.image.resize2d(
        x, size, layout=layout, method=method, coordinate_transformation_mode=mode
    )


def _shape(layout: str, channels: int, high: int, wide: int, batch: int = 1):
    if layout == "NCHW":
        return (batch, channels, high, wide), "float32"
    return (batch, high, wide, channels), "float32"


def _text(build, *operands) -> str:
    (func,) = prim_funcs(lower(build, list(operands))).values()
    return emit(func, UnmodelledConfig("elementwise", ARCH)).mod["main"].script()


def _compute(text: str) -> str:
    """Return the stores that do not fill a table."""
    return "\n".join(
        line
        for line in text.splitlines()
        if " = " in line and "index_var" not in line.split("=")[0]
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_positions_are_computed_once_a_row_and_once_a_column(layout: str) -> None:
    text = _text(_resize((80, 80), layout), _shape(layout, 24, 40, 40))
    assert "T.floor" in text
    assert "T.floor" not in _compute(text)


def test_channels_first_are_transposed_row_by_row() -> None:
    text = _text(_resize((80, 80), "NCHW"), _shape("NCHW", 24, 40, 40))
    assert "T.vectorized(T.int64(12))" in text  # a tile of 12 x 8
    assert "T.vectorized(T.int64(24))" in text  # the interpolation, along the channels


@pytest.mark.parametrize(
    ("method", "layout", "channels"),
    [("nearest_neighbor", "NHWC", 24), ("cubic", "NHWC", 24), ("linear", "NCHW", 3)],
)
def test_left_as_it_is(method: str, layout: str, channels: int) -> None:
    build = _resize((20, 24), layout, method)
    assert "index_var" not in _text(build, _shape(layout, channels, 10, 12))


@hypothesis.settings(max_examples=4, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    layout=st.sampled_from(["NCHW", "NCHW", "NHWC"]),
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 3, 8, 13, 16, 19, 24, 33, 41]),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    # TVM divides by zero with align_corners and one element.
    out=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    mode=st.sampled_from(["half_pixel", "align_corners", "asymmetric"]),
    epilogue=st.sampled_from(["none", "bias", "residual"]),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay(layout, batch, channels, size, out, mode, epilogue, arch) -> None:
    resize = _resize(out, layout, mode=mode)
    operands = [_shape(layout, channels, *size, batch)]
    build = resize
    if epilogue == "bias":
        operands.append(_shape(layout, channels, 1, 1))
    elif epilogue == "residual":
        operands.append(_shape(layout, channels, *out, batch))
    if epilogue != "none":
        build = lambda x, b: nn.relu(op.add(resize(x), b))  # noqa: E731
    check(build, operands, arch, template="elementwise")
    for func in prim_funcs(lower(build, operands)).values():
        assert_replays(emit(func, UnmodelledConfig("elementwise", arch)), func)

"""Arithmetic before a transpose to few channels: what is staged, and right results."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.cpu.harness import ARCH, NARROW, check, lower, prim_funcs
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.emit import emit

op = relax.op
# A function with a stage has a buffer for it.
_STAGED = "sblock_alloc_buffer"


def _number(value: float) -> relax.Expr:
    return relax.const(np.float32(value))


def _image(dtype: str, pads: tuple[int, int, int, int], channels: int):
    """Return a function that narrows an NCHW image, makes it NHWC, and pads it."""
    top, left, bottom, right = pads

    def build(x: relax.Expr) -> relax.Expr:
        if dtype in ("int8", "uint8"):
            x = op.clip(op.add(op.round(op.multiply(x, _number(9.0))), _number(4.0)), 0, 100)
        x = op.permute_dims(op.astype(x, dtype), [0, 2, 3, 1])
        if any((*pads, channels)):
            x = op.nn.pad(x, [0, 0, top, bottom, left, right, 0, channels])
        return x

    return build


def _script(build, shape, dtype="float32", **how) -> str:
    (func,) = prim_funcs(lower(build, [(shape, dtype)])).values()
    return emit(func, UnmodelledConfig("elementwise", ARCH, **how)).mod["main"].script()


def test_the_arithmetic_is_vectorised_and_channels_are_unrolled() -> None:
    text = _script(_image("bfloat16", (1, 1, 1, 1), 1), (1, 3, 48, 192))
    assert _STAGED in text
    assert "T.vectorized(T.int64(64))" in text
    assert "T.unroll(T.int64(4))" in text
    assert "T.parallel(" in text
    assert text.count("_partition") >= 3  # the first pixel, the row, the last pixel


def test_without_a_pad_the_row_is_one_part() -> None:
    text = _script(_image("uint8", (0, 0, 0, 0), 0), (1, 3, 48, 192))
    assert _STAGED in text
    assert "T.unroll(T.int64(3))" in text
    assert "_partition" not in text


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda x: op.permute_dims(x, [0, 2, 3, 1]), (1, 3, 48, 192)),  # nothing to compute
        (_image("bfloat16", (0, 0, 0, 0), 0), (1, 8, 48, 192)),  # channels enough
        (_image("bfloat16", (0, 0, 0, 0), 0), (1, 1, 48, 192)),  # one channel: no transpose
        (_image("bfloat16", (0, 0, 0, 0), 0), (1, 3, 192, 4)),  # a short row
        (lambda x: op.astype(op.nn.relu(x), "float16"), (1, 48, 192, 3)),  # in the layout already
    ],
)
def test_other_functions_are_one_pass(build, shape) -> None:
    assert _STAGED not in _script(build, shape)


def test_one_register_a_vector_means_the_plain_loop() -> None:
    text = _script(_image("bfloat16", (1, 1, 1, 1), 1), (1, 3, 48, 192), vector_registers=1)
    assert _STAGED not in text


def test_the_transpose_may_come_first() -> None:
    """Then the arithmetic is already in the layout of the result, and nothing is staged."""

    def build(x: relax.Expr) -> relax.Expr:
        return op.astype(op.permute_dims(x, [0, 2, 3, 1]), "float16")

    assert _STAGED not in _script(build, (1, 3, 48, 192))
    check(build, [((1, 3, 48, 192), "float32")], template="elementwise")


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    batch=st.sampled_from([1, 2]),
    channels=st.integers(1, 4),
    rows=st.integers(1, 40),
    columns=st.integers(7, 70),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    more=st.integers(0, 2),
    dtype=st.sampled_from(["uint8", "int8", "bfloat16", "float16"]),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay(batch, channels, rows, columns, pads, more, dtype, arch) -> None:
    build, operands = _image(dtype, pads, more), [((batch, channels, rows, columns), "float32")]
    check(build, operands, arch, template="elementwise")
    (func,) = prim_funcs(lower(build, operands)).values()
    assert_replays(emit(func, UnmodelledConfig("elementwise", arch)), func)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_a_whole_image(dtype) -> None:
    build = _image(dtype, (1, 1, 1, 1), 1)
    check(build, [((1, 3, 96, 224), "float32")], template="elementwise")

"""Tests of forms: names, shapes, conversions between forms, and reshapes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.transform.layout.form import LayoutForm, change, reshape_form, transpose_form

NCHW, NHWC = LayoutForm((0, 1, 2, 3)), LayoutForm((0, 2, 3, 1))
NCHW4C = LayoutForm((0, 1, 2, 3), ((1, 4),))


def test_names_and_shapes():
    assert NHWC.name("NCHW") == "NHWC"
    assert NCHW4C.name("NCHW") == "NCHW4c"
    assert NHWC.shape((1, 8, 5, 6)) == (1, 5, 6, 8)
    assert NCHW4C.shape((1, 8, 5, 6)) == (1, 2, 5, 6, 4)
    weight = LayoutForm((0, 1, 2, 3), ((1, 4), (0, 2)))
    assert weight.name("OIHW") == "OIHW4i2o"
    assert weight.shape((6, 8, 3, 3)) == (3, 2, 3, 3, 4, 2)


def test_a_block_of_an_axis_of_size_one_broadcasts():
    assert NCHW4C.fits((1, 1, 5, 6))
    assert NCHW4C.shape((1, 1, 5, 6)) == (1, 1, 5, 6, 1)
    assert not NCHW4C.fits((1, 6, 5, 6))


def test_moving_only_axes_of_size_one_is_free():
    assert change((1, 8, 1, 1), NCHW, NHWC).is_free
    assert change((1, 8, 1, 1), NCHW4C, NHWC).is_free
    assert change((1, 1, 5, 6), NCHW, NHWC).is_free
    assert not change((1, 8, 5, 1), NCHW, NHWC).is_free


def test_blocks_that_do_not_divide_each_other_take_two_changes():
    assert change((1, 12, 2, 2), LayoutForm((0, 1, 2, 3), ((1, 6),)), NCHW4C) is None


def _forms(shape):
    def blocked(order):
        axes = [a for a in range(len(shape)) if shape[a] > 1]
        none = st.just(LayoutForm(tuple(order)))
        if not axes:
            return none
        blocks = st.sampled_from(axes).flatmap(
            lambda a: st.sampled_from([d for d in range(1, shape[a] + 1) if shape[a] % d == 0]).map(
                lambda size: LayoutForm(tuple(order), ((a, size),))
            )
        )
        return none | blocks

    return st.permutations(range(len(shape))).flatmap(blocked)


_SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)


def _held(data, form):
    return change(data.shape, LayoutForm.identity(data.ndim), form)(data)


def _slow(data, form):
    """Return ``data`` in ``form``, converted element by element."""
    out = np.zeros(form.shape(data.shape), data.dtype)
    for at in np.ndindex(*data.shape):
        outer = [at[a] // (form.block(a) or 1) for a in form.order]
        inner = [0 if data.shape[a] == 1 else at[a] % size for a, size in form.blocks]
        out[(*outer, *inner)] = data[at]
    return out


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_changes_are_right(draw):
    shape = draw.draw(_SHAPES)
    source, target = draw.draw(_forms(shape)), draw.draw(_forms(shape))
    data = np.arange(math.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(_held(data, source), _slow(data, source))
    step = change(shape, source, target)
    if step is not None:
        np.testing.assert_array_equal(step(_slow(data, source)), _slow(data, target))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_view_is_the_same_memory(draw):
    shape = draw.draw(_SHAPES)
    form = draw.draw(_forms(shape))
    data = np.arange(math.prod(shape)).reshape(shape)
    axes = draw.draw(st.permutations(range(len(shape))))
    seen = transpose_form(form, axes)
    np.testing.assert_array_equal(
        _slow(data.transpose(axes), seen).ravel(), _slow(data, form).ravel()
    )
    factors = [p for size in shape for p in ([2, 2] if size == 4 else [2, 3] if size == 6 else
                                             [size] if size > 1 else [])]  # fmt: skip
    cut = draw.draw(st.integers(0, len(factors)))
    to_shape = (math.prod(factors[:cut]), 1, *factors[cut:])
    seen = reshape_form(form, shape, to_shape)
    if seen is not None:
        np.testing.assert_array_equal(
            _slow(data.reshape(to_shape), seen).ravel(), _slow(data, form).ravel()
        )


@pytest.mark.parametrize(
    ("form", "shape", "to_shape", "want"),
    [
        (NHWC, (1, 8, 1, 1), (1, 8), LayoutForm((0, 1))),
        (NHWC, (2, 8, 3, 3), (2, 8, 9), LayoutForm((0, 2, 1))),
        (NHWC, (2, 8, 3, 3), (2, 72), None),
        (NHWC, (2, 8, 3, 3), (2, 2, 4, 3, 3), LayoutForm((0, 3, 4, 1, 2))),
        (NCHW4C, (2, 8, 3, 3), (2, 8, 9), LayoutForm((0, 1, 2), ((1, 4),))),
        (NCHW4C, (2, 8, 3, 3), (2, 2, 4, 3, 3), LayoutForm((0, 1, 2, 3, 4), ((2, 4),))),
        (NCHW4C, (2, 8, 3, 3), (2, 4, 2, 3, 3), None),
    ],
)
def test_reshape(form, shape, to_shape, want):
    assert reshape_form(form, shape, to_shape) == want

"""Pooling with a stride along the vector axis: columns grouped by phase, right results."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.cpu.harness import (
    ARCH,
    NARROW,
    apply_template,
    assert_close,
    lower,
    prim_funcs,
    run,
)
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.emit import NotApplicable, emit

nn = relax.op.nn


def _pool(kind: str, kernel: int, stride: int, padding, include: bool = False):
    if kind == "max":
        return lambda x: nn.max_pool2d(x, kernel, stride, padding)
    return lambda x: nn.avg_pool2d(x, kernel, stride, padding, count_include_pad=include)


def _check(build, shape: tuple[int, ...], arch=ARCH) -> None:
    mod = lower(build, [(shape, "float32")])
    for func in prim_funcs(mod).values():
        assert_replays(emit(func, UnmodelledConfig("strided_window", arch)), func)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    scheduled = apply_template(mod, "strided_window", arch)
    assert_close(run(scheduled, [x])[0], run(mod, [x])[0])


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"),
    [
        (3, 2, 1, (1, 2, 56, 56)),
        (3, 2, (0, 0, 1, 1), (2, 3, 28, 28)),  # an odd number of padded columns
        (3, 2, 0, (1, 3, 18, 34)),  # the last column is in no window
        (5, 3, 2, (1, 2, 21, 36)),
        (7, 4, 2, (1, 1, 33, 64)),
    ],
)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_numbers_stay(kind, kernel, stride, padding, shape) -> None:
    _check(_pool(kind, kernel, stride, padding), shape)


@hypothesis.settings(max_examples=10, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    kind=st.sampled_from(["max", "avg"]),
    kernel=st.integers(2, 5),
    stride=st.integers(1, 4),
    padding=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    size=st.tuples(st.integers(5, 20), st.integers(8, 70)),
    include=st.booleans(),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay_or_it_is_refused(kind, kernel, stride, padding, size, include, arch) -> None:
    padding = [min(p, kernel // 2) for p in padding]
    try:
        _check(_pool(kind, kernel, stride, padding, include), (1, 2, *size), arch)
    except NotApplicable as error:
        assert str(error).startswith("strided_window")


def test_the_copied_rows_are_contiguous_for_every_tap() -> None:
    [func] = prim_funcs(lower(_pool("max", 3, 2, 1), [((1, 64, 112, 112), "float32")])).values()
    text = emit(func, UnmodelledConfig("strided_window", ARCH)).mod["main"].script()
    assert "T.int64(2), T.int64(57)))" in text  # two phases of the 114 padded columns
    assert text.count("T.parallel(") == 1


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (_pool("max", 2, 2, 0), (1, 2, 28, 28)),  # no overlapping windows
        (_pool("max", 3, 1, 1), (1, 2, 28, 28)),  # no stride
        (_pool("max", 3, 2, 1), (1, 2, 28, 29)),  # an odd number of columns
    ],
)
def test_what_it_does_not_fit_is_refused(build, shape) -> None:
    [func] = prim_funcs(lower(build, [(shape, "float32")])).values()
    with pytest.raises(NotApplicable, match=r"^strided_window: "):
        emit(func, UnmodelledConfig("strided_window", ARCH))

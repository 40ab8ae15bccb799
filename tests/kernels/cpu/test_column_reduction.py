"""Column reductions: one loop nest over vectors of columns, right results."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import tvm
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.cpu.harness import (
    ARCH,
    NARROW,
    apply_template,
    assert_close,
    loop_kinds,
    lower,
    prim_funcs,
    run,
)
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.emit import NotApplicable, emit

op, nn = relax.op, relax.op.nn


def _lowered(build, *shape: int) -> tvm.IRModule:
    return lower(build, [(shape, "float32")])


def _apply(build, *shape: int):
    [func] = prim_funcs(_lowered(build, *shape)).values()
    return emit(func, UnmodelledConfig("column_reduction", ARCH))


def _check(build, x: np.ndarray, arch=ARCH) -> None:
    mod = _lowered(build, *x.shape)
    scheduled = apply_template(mod, "column_reduction", arch)
    assert "vectorized" in loop_kinds(scheduled)
    [got], [expected] = run(scheduled, [x]), run(mod, [x])
    assert_close(got, expected)


def test_all_blocks_run_within_one_loop_over_vectors() -> None:
    text = _apply(lambda x: nn.softmax(x, 1), 1, 19, 64, 64).mod["main"].script()
    assert text.count("T.parallel(") == 1
    # Maximum, exponential, sum, quotient, and the initial values of both reductions.
    assert text.count("T.vectorized(T.int64(32))") == 6


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    lead=st.sampled_from([(), (1,), (3,)]),
    reduced=st.sampled_from([2, 5, 19]),
    columns=st.sampled_from([(16,), (7, 7), (6, 10), (1, 12), (40,)]),
    kind=st.sampled_from(["softmax", "log_softmax", "argmax", "argmin", "variance"]),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay(lead, reduced, columns, kind, arch) -> None:
    axis = len(lead)
    build = {
        "softmax": lambda x: nn.softmax(x, axis),
        "log_softmax": lambda x: nn.log_softmax(x, axis),
        "argmax": lambda x: op.argmax(x, axis),
        "argmin": lambda x: op.argmin(x, axis, keepdims=True),
        "variance": lambda x: op.variance(x, [axis]),
    }[kind]
    x = np.random.default_rng(0).standard_normal((*lead, reduced, *columns)).astype("float32")
    # Rounded, so that ties for the maximum occur.
    _check(build, np.round(x) if kind.startswith("arg") else x, arch)


@pytest.mark.parametrize("find", [op.argmax, op.argmin])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_of_equal_values_wins(find, axis: int) -> None:
    template = ("column_reduction", "row_reduction")[axis]
    x = np.zeros((512, 64) if axis == 0 else (64, 512), "float32")
    x[-1, -1] = -1 if find is op.argmax else 1
    mod = lower(lambda v: find(v, axis), [(x.shape, "float32")])
    scheduled = apply_template(mod, template)
    assert "vectorized" in loop_kinds(scheduled)
    [got] = run(scheduled, [x])
    np.testing.assert_array_equal(got, np.zeros(64))


def test_statistics_of_channels_that_lie_innermost() -> None:
    weights = [((32,), "float32")] * 2
    mod = lower(
        lambda x, g, b: nn.instance_norm(x, g, b, 3, [1, 2]), [((2, 6, 5, 32), "float32"), *weights]
    )
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("float32") for s in ((2, 6, 5, 32), (32,), (32,))]
    scheduled = apply_template(mod, "column_reduction")
    assert_close(run(scheduled, inputs)[0], run(mod, inputs)[0])


@pytest.mark.parametrize(
    ("build", "shape", "reason"),
    [
        (lambda x: nn.softmax(x, -1), (12, 40), "no contiguous innermost axis"),
        (lambda x: nn.softmax(x, 0), (12, 1009), "no divisor from 4 elements on"),
        (nn.relu, (12, 40), "it has no reduction"),
    ],
)
def test_what_it_does_not_fit_is_refused(build, shape, reason) -> None:
    with pytest.raises(NotApplicable, match=f"^column_reduction: .*{reason}"):
        _apply(build, *shape)

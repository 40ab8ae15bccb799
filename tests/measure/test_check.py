"""Results of kernels are compared with the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.measure.check import WrongResultError, compare


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("differing", "by", "is_wrong"),
    [(0, 0, False), (1, 1, False), (4, 1, False), (5, 1, True), (1, 2, True)],
)
def test_8_bit_results_may_be_rounded_to_the_other_side_of_a_tie(
    dtype: str, differing: int, by: int, is_wrong: bool
) -> None:
    """One in a thousand of 4,000, by one; also from the least value to the next."""
    wanted = np.full(4000, np.iinfo(dtype).min, dtype)
    got = wanted.copy()
    got[:differing] += by
    if is_wrong:
        with pytest.raises(WrongResultError, match=f"argument 3 differs at {differing} elements"):
            compare(3, got, wanted)
    else:
        compare(3, got, wanted)


def test_one_of_few_8_bit_results_may_differ() -> None:
    wanted = np.zeros(16, np.int8)
    compare(0, wanted + np.eye(1, 16, dtype=np.int8)[0], wanted)
    with pytest.raises(WrongResultError, match="differs at 2 elements"):
        compare(0, np.array([1, 1] + [0] * 14, np.int8), wanted)


def test_accumulators_are_exact() -> None:
    wanted = np.zeros(4000, np.int32)
    got = wanted.copy()
    got[0] = 1
    with pytest.raises(WrongResultError, match="differs at 1 elements"):
        compare(0, got, wanted)


def test_a_byte_that_wraps_around_is_wrong() -> None:
    with pytest.raises(WrongResultError):
        compare(0, np.array([255], np.uint8), np.array([0], np.uint8))

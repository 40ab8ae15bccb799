"""Fragment layouts of mma.sync: each matrix element has the lane and register that PTX defines."""

from __future__ import annotations

import itertools

import pytest

from tvmopt.kernels.cuda.intrinsics.mma import MmaIntrinsic
from tvmopt.kernels.cuda.intrinsics.mma_functions import COLUMNS, LANES, ROWS

KINDS = [
    MmaIntrinsic("float16", "float32"),
    MmaIntrinsic("bfloat16", "float32", False, False),
    MmaIntrinsic("int8", "int32"),
    MmaIntrinsic("uint8", "int32", other="int8"),
]
each = pytest.mark.parametrize("mma", KINDS, ids=str)


@each
def test_every_element_has_its_place(mma) -> None:
    everywhere = set(itertools.product(range(LANES), range(mma.local)))
    for place in (mma.place_a, mma.place_b):
        assert {place(x, k) for x in range(ROWS) for k in range(mma.depth)} == everywhere


def test_sums_come_back_from_their_places() -> None:
    for i, j in itertools.product(range(ROWS), range(COLUMNS)):
        assert MmaIntrinsic.at_c(*MmaIntrinsic.place_c(i, j)) == (i, j)


@each
def test_places_are_those_of_the_instruction(mma) -> None:
    """Compare with the fragment tables of the PTX manual (4-byte registers, groupID = lane / 4)."""
    word = {"float16": 2, "bfloat16": 2, "int8": 4, "uint8": 4}[mma.dtype]
    half = mma.depth // 2
    for lane, register, part in itertools.product(range(LANES), range(4), range(word)):
        group, within = lane // 4, lane % 4
        row = group + 8 * (register % 2)
        k = within * word + part + half * (register // 2)
        assert mma.place_a(row, k) == (lane, register * word + part)
        # Two instructions along N: the second B fragment's registers follow the first one's.
        column = group + 8 * (register // 2)
        k = within * word + part + half * (register % 2)
        assert mma.place_b(column, k) == (lane, register * word + part)
    for lane, register in itertools.product(range(LANES), range(8)):
        row = lane // 4 + 8 * (register // 2 % 2)
        column = 2 * (lane % 4) + register % 2 + 8 * (register // 4)
        assert mma.place_c(row, column) == (lane, register)


@pytest.mark.parametrize(
    "arguments", [("float16", "int32"), ("bfloat16", "bfloat16"), ("int4", "int32")]
)
def test_refuses_other_types(arguments) -> None:
    with pytest.raises(ValueError, match=r"accumulators of .* must be among"):
        MmaIntrinsic(*arguments)


def test_only_bytes_differ_in_type() -> None:
    with pytest.raises(ValueError, match="only bytes differ"):
        MmaIntrinsic("float16", "float32", other="bfloat16")


def test_refuses_to_transpose_bytes() -> None:
    with pytest.raises(ValueError, match="along k"):
        MmaIntrinsic("int8", "int32", True, False)

"""RemoveCastPairs: casts to float32 and back go; casts that round stay."""

from __future__ import annotations

import pytest
from tvm import relax

from tvmopt.transform.cast_pairs import RemoveCastPairs

op = relax.op


def _casts(relax_main, first: str, *dtypes: str) -> int:
    def body(emit, x):
        for dtype in dtypes:
            x = emit(op.astype(x, dtype))
        return emit(op.negative(x))

    return RemoveCastPairs()(relax_main(body, x=((4,), first))).script().count("R.astype")


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_pair_that_does_not_round_goes(relax_main, narrow) -> None:
    assert _casts(relax_main, narrow, "float32", narrow) == 0
    assert _casts(relax_main, narrow, "float32", narrow, "float32") == 1


@pytest.mark.parametrize(
    ("first", "dtypes"),
    [
        ("float32", ("float16", "float32")),
        ("float16", ("float32", "bfloat16")),
        ("float16", ("bfloat16", "float16")),
        ("float16", ("int8", "float16")),
        ("int8", ("float32", "int8")),
    ],
)
def test_others_stay(relax_main, first, dtypes) -> None:
    assert _casts(relax_main, first, *dtypes) == 2

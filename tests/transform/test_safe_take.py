"""Bounds-safe gathers by computed indices: the module before and after."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvmopt.transform.safe_take import GuardTake

op = relax.op
IDS = {"ids": ((3,), "int64")}


def _take(relax_main, dtype, mode, axis=0):
    return relax_main(
        lambda emit, table, ids: emit(op.take(table, ids, axis, mode)),
        table=((6, 4), dtype),
        **IDS,
    )


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        ("float32", "nan"), ("float16", "nan"), ("bfloat16", "nan"), ("float64", "nan"),
        ("int64", "clip"), ("int8", "clip"), ("uint8", "clip"), ("bool", "clip"),
    ],
)  # fmt: skip
def test_fast_becomes_safe(relax_main, assert_same, dtype, mode):
    for axis in (0, 1):
        before, after = (_take(relax_main, dtype, m, axis) for m in ("fast", mode))
        assert_same(GuardTake()(before), after)


@pytest.mark.parametrize("mode", ["clip", "wrap", "nan"])
def test_safe_modes_stay(relax_main, assert_same, mode):
    mod = _take(relax_main, "float32", mode)
    assert_same(GuardTake()(mod), mod)


def test_constant_indices_stay(relax_main, assert_same):
    ids = relax.const(np.array([0, 5]), "int64")
    mod = relax_main(lambda emit, table: emit(op.take(table, ids, 0)), table=((6, 4), "float32"))
    assert_same(GuardTake()(mod), mod)


def test_computed_indices_are_guarded(relax_main, assert_same):
    def body(mode):
        return relax_main(
            lambda emit, ids: emit(
                op.take(relax.const(np.ones((6, 4), np.float32)), emit(op.add(ids, ids)), 0, mode)
            ),
            **IDS,
        )

    assert_same(GuardTake()(body("fast")), body("nan"))

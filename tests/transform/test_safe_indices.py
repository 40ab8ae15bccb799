"""Bounds-safe gathers and scatters by computed indices: the module before and after."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvmopt.transform.safe_indices import GuardIndices

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
        assert_same(GuardIndices()(before), after)


@pytest.mark.parametrize("mode", ["clip", "wrap", "nan"])
def test_safe_modes_stay(relax_main, assert_same, mode):
    mod = _take(relax_main, "float32", mode)
    assert_same(GuardIndices()(mod), mod)


def test_constant_indices_stay(relax_main, assert_same):
    ids = relax.const(np.array([0, 5]), "int64")
    mod = relax_main(lambda emit, table: emit(op.take(table, ids, 0)), table=((6, 4), "float32"))
    assert_same(GuardIndices()(mod), mod)


def test_computed_indices_are_guarded(relax_main, assert_same):
    def body(mode):
        return relax_main(
            lambda emit, ids: emit(
                op.take(relax.const(np.ones((6, 4), np.float32)), emit(op.add(ids, ids)), 0, mode)
            ),
            **IDS,
        )

    assert_same(GuardIndices()(body("fast")), body("nan"))


TABLE = {"table": ((6, 4), "float32")}


def _clipped(emit, ids, most, least=0):
    """Emit what the pass adds in front: clipped indices, and whether they were within range."""
    low, high = (relax.const(np.array(v), "int64") for v in (least, most))
    safe = emit(op.minimum(emit(op.maximum(ids, low)), high))
    return safe, emit(op.equal(ids, safe))


def _all(emit, inside, axes=None):
    return emit(op.astype(emit(op.min(emit(op.astype(inside, "int8")), axes)), "bool"))


def _nan():
    return relax.const(np.nan, "float32")


def test_gather_elements(relax_main, assert_same):
    ids = {"ids": ((6, 2), "int64")}

    def after(emit, table, ids):
        safe, inside = _clipped(emit, ids, 3)
        return emit(op.where(inside, emit(op.gather_elements(table, safe, 1)), _nan()))

    before = relax_main(lambda emit, t, i: emit(op.gather_elements(t, i, 1)), **TABLE, **ids)
    assert_same(GuardIndices()(before), relax_main(after, **TABLE, **ids))


def test_gather_nd(relax_main, assert_same):
    ids = {"ids": ((3, 1), "int64")}

    def after(emit, table, ids):
        safe, inside = _clipped(emit, ids, 5)
        rows = emit(op.gather_nd(table, safe, 0))
        all_inside = emit(op.expand_dims(_all(emit, inside, [-1]), -1))
        return emit(op.where(all_inside, rows, _nan()))

    before = relax_main(lambda emit, t, i: emit(op.gather_nd(t, i, 0)), **TABLE, **ids)
    assert_same(GuardIndices()(before), relax_main(after, **TABLE, **ids))


def test_scatter_elements_counts_from_the_end(relax_main, assert_same):
    values = {"ids": ((6, 1), "int64"), "updates": ((6, 1), "float32")}

    def after(emit, table, ids, updates):
        safe, inside = _clipped(emit, ids, 3, -4)
        made = emit(op.scatter_elements(table, safe, updates, 1, "add"))
        return emit(op.where(_all(emit, inside), made, _nan()))

    before = relax_main(
        lambda emit, t, i, u: emit(op.scatter_elements(t, i, u, 1, "add")), **TABLE, **values
    )
    assert_same(GuardIndices()(before), relax_main(after, **TABLE, **values))


def test_scatter_nd(relax_main, assert_same):
    values = {"ids": ((3, 2), "int64"), "updates": ((3,), "float32")}

    def after(emit, table, ids, updates):
        safe, inside = _clipped(emit, ids, [5, 3], [0, 0])
        made = emit(op.scatter_nd(table, safe, updates, "max"))
        return emit(op.where(_all(emit, inside), made, _nan()))

    before = relax_main(
        lambda emit, t, i, u: emit(op.scatter_nd(t, i, u, "max")), **TABLE, **values
    )
    assert_same(GuardIndices()(before), relax_main(after, **TABLE, **values))


def test_constants_within_range_stay_others_do_not(relax_main, assert_same):
    def mod(ids):
        return relax_main(
            lambda emit, table: emit(op.gather_nd(table, relax.const(np.array(ids), "int64"), 0)),
            **TABLE,
        )

    within, beyond = mod([[0, 3], [5, 0]]), mod([[0, 3], [6, 0]])
    assert_same(GuardIndices()(within), within)
    assert "minimum" not in str(beyond)
    assert "minimum" in str(GuardIndices()(beyond))

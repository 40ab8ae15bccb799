"""Constant folding with NumPy: the module before and after."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from tvm import relax

from tvmopt.frontend import import_onnx, prepare
from tvmopt.transform.fold_numpy import FoldConstantNumpy

W = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
X = {"x": ((2, 3, 4), "float32")}
op = relax.op
const = relax.const


def _emit_all(emit, expr):
    """Emit a nested expression operator by operator."""
    if isinstance(expr, relax.Call):
        args = [_emit_all(emit, a) for a in expr.args]
        return emit(relax.Call(expr.op, args, expr.attrs, list(expr.ty_args)))
    return expr


@pytest.fixture
def folds_to(relax_main, assert_same):
    """Assert that adding ``before`` to x becomes adding ``after``, a NumPy array."""

    def check(before, after):
        shape = after.shape
        x = {"x": (shape, str(after.dtype))}
        got = relax_main(lambda emit, x: emit(op.add(x, _emit_all(emit, before))), **x)
        want = relax_main(lambda emit, x: emit(op.add(x, const(after, str(after.dtype)))), **x)
        assert_same(FoldConstantNumpy()(got), want)

    return check


@pytest.mark.parametrize("axes", [None, [0, 2, 1], [2, 0, 1], [1, 2, 0]])
def test_transpose(folds_to, axes):
    folds_to(op.permute_dims(const(W), axes), np.ascontiguousarray(np.transpose(W, axes)))


def test_reshapes(folds_to):
    folds_to(op.reshape(const(W), (6, 4)), W.reshape(6, 4))
    folds_to(op.reshape(const(W), (4, -1)), W.reshape(4, 6))
    folds_to(op.flatten(const(W)), W.reshape(24))
    folds_to(op.expand_dims(const(W), [0, -1]), W.reshape(1, 2, 3, 4, 1))
    folds_to(op.squeeze(const(W[:1]), [0]), W[0])


def test_chain(folds_to):
    chain = op.permute_dims(op.reshape(op.expand_dims(const(W), 0), (6, 4)), [1, 0])
    folds_to(chain, np.ascontiguousarray(W.reshape(6, 4).T))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_arithmetic_broadcasts(folds_to, name):
    small = np.array([[1], [5], [-2]], np.float32)
    folds_to(getattr(op, name)(const(W), const(small)), getattr(np, name)(W, small))


@pytest.mark.parametrize(
    "name", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
)
def test_comparisons(folds_to, name):
    small = np.array([[1], [5], [-2]], np.float32)
    folds_to(getattr(op, name)(const(W), const(small)), getattr(np, name)(W, small))


def test_take_of_indices_within_range(folds_to):
    ids = np.array([[1, 0], [0, 1]])
    for axis in (0, 1):
        taken = op.take(const(W), relax.const(ids, "int64"), axis, "wrap")
        folds_to(taken, np.take(W, ids, axis))


def test_take_of_indices_out_of_range_stays(relax_main, assert_same):
    mod = relax_main(
        lambda emit, x: emit(op.add(x, op.take(const(W), relax.const([7], "int64"), 0, "wrap"))),
        x=((1, *W.shape[1:]), "float32"),
    )
    assert_same(FoldConstantNumpy()(mod), mod)


def test_shape_as_a_tensor(relax_main, assert_same):
    before = relax_main(lambda emit, x: emit(op.shape_to_tensor(op.shape_of(x))), **X)
    found = FoldConstantNumpy()(before)
    assert "shape_to_tensor" not in str(found)
    assert "ir.GenericConst" in str(found)


def test_cast(folds_to):
    folds_to(op.astype(const(W), "int64"), W.astype(np.int64))


def test_bounds_of_a_clip(folds_to):
    # The importer computes a bound like this; NaN stands for no bound.
    for bound, want in ((0.5, 0.5), (np.nan, -np.inf)):
        value = const(np.float32(bound))
        expr = op.where(op.isnan(value), const(np.float32(-np.inf)), value)
        folds_to(expr, np.asarray(want, np.float32))


def test_imported_clip_has_nothing_left_to_compute(make_model, assert_same):
    model = make_model(
        [helper.make_node("Clip", ["x", "low", "high"], ["y"])],
        {"x": ("float32", [2, 3])},
        {"y": ("float32", [2, 3])},
        {"low": np.float32(-0.5), "high": np.float32(0.5)},
    )
    mod = relax.transform.DeadCodeElimination(["main"])(
        FoldConstantNumpy()(import_onnx(prepare(model, {}).model))
    )
    names = [
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert names
    assert not set(names) & {"relax.isnan", "relax.where", "relax.equal"}


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: emit(op.permute_dims(x, [1, 0, 2])),
        lambda emit, x: emit(op.reshape(x, (24,))),
        lambda emit, x: emit(op.add(x, const(W))),
        lambda emit, x: emit(op.where(emit(op.isnan(x)), const(W), x)),
        lambda emit, x: emit(op.matmul(x, const(np.ones((4, 2), np.float32)))),
    ],
    ids=["permute_dims", "reshape", "add", "where", "matmul"],
)
def test_what_depends_on_an_input_stays(relax_main, assert_same, body):
    mod = relax_main(body, **X)
    assert_same(FoldConstantNumpy()(mod), mod)


def test_large_arithmetic_is_left_to_the_compiler(relax_main, assert_same):
    large = np.ones(4097, np.float32)
    mod = relax_main(
        lambda emit, x: emit(op.add(x, emit(op.multiply(const(large), const(large))))),
        x=((4097,), "float32"),
    )
    assert_same(FoldConstantNumpy()(mod), mod)


def test_half_types_fold(folds_to):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        half = W.astype(dtype)
        name = str(half.dtype)
        folds_to(op.permute_dims(const(half, name)), np.ascontiguousarray(half.T))
        folds_to(op.add(const(half, name), const(half, name)), half + half)
        folds_to(op.astype(const(np.full((100, 100), 0.1, np.float32)), name),
                 np.full((100, 100), 0.1, np.float32).astype(dtype))  # fmt: skip
        folds_to(op.astype(const(half, name), "float32"), W)


def test_type_of_no_table_stays(relax_main, assert_same):
    tiny = const(np.ones((2, 3)).astype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn")
    mod = relax_main(
        lambda emit, x: emit(op.add(x, emit(op.permute_dims(tiny)))), x=((3, 2), "float8_e4m3fn")
    )
    assert_same(FoldConstantNumpy()(mod), mod)

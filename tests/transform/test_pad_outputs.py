"""Outputs that no tile width divides are padded, and sliced behind elementwise operators."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower
from tvmopt.transform.pad_outputs import PadOutputs, padded_outputs

op, nn = relax.op, relax.op.nn
HOST = resolve_target("host", 2)
PASS = PadOutputs(HOST.to_tvm())


def constant(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape, np.float32))


W, BIAS = constant(24, 521), constant(521)


@pytest.mark.parametrize(
    ("outputs", "padded"),
    [(64, 64), (97, 97), (131, 131), (256, 256), (257, 272), (521, 528), (1000, 1000),
     (1001, 1001), (6625, 6625), (1009, 1024)],
)  # fmt: skip
def test_padded_outputs(outputs: int, padded: int) -> None:
    """97 columns fill 87 % of 7 vectors, and 125 of 6625 fill 98 % of 8; 521 is a prime."""
    assert padded_outputs(outputs, tiles=False) == padded


@pytest.mark.parametrize(("outputs", "padded"), [(6, 6), (24, 24), (258, 272), (6625, 6640)])
def test_padded_outputs_of_matrix_tiles(outputs: int, padded: int) -> None:
    assert padded_outputs(outputs, tiles=True) == padded


def test_a_target_with_matrix_tiles(relax_main) -> None:
    def body(emit, x):
        narrow = relax.const(np.zeros((32, 258), ml_dtypes.bfloat16))
        return emit(op.matmul(x, narrow, out_dtype="float32"))

    mod = relax_main(body, x=((64, 32), "bfloat16"))
    amx = PadOutputs(resolve_target("sapphirerapids", 2).to_tvm())(mod)
    assert "272" in amx.script() and "272" not in PASS(mod).script()


def test_elementwise_operators_keep_the_padding(relax_main, assert_same) -> None:
    def before(emit, x, scale):
        y = emit(op.sigmoid(emit(op.add(emit(op.matmul(x, W)), BIAS))))
        return emit(op.multiply(emit(op.multiply(y, y)), scale))

    def after(emit, x, scale):
        padded = emit(op.matmul(x, emit(nn.pad(W, [0, 0, 0, 7]))))
        y = emit(op.sigmoid(emit(op.add(padded, emit(nn.pad(BIAS, [0, 7]))))))
        y = emit(op.multiply(emit(op.multiply(y, y)), scale))
        return emit(op.strided_slice(y, [1], [0], [521]))

    inputs = {"x": ((3, 24), "float32"), "scale": ((3, 1), "float32")}
    assert_same(PASS(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_other_users_get_the_slice(relax_main, assert_same) -> None:
    def before(emit, x, y):
        return emit(op.add(emit(op.matmul(x, W)), y))

    def after(emit, x, y):
        padded = emit(op.matmul(x, emit(nn.pad(W, [0, 0, 0, 7]))))
        return emit(op.add(emit(op.strided_slice(padded, [1], [0], [521])), y))

    inputs = {"x": ((3, 24), "float32"), "y": ((3, 521), "float32")}
    assert_same(PASS(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_other_outputs_and_targets_stay(relax_main) -> None:
    def body(emit, x):
        return emit(op.matmul(x, constant(24, 520)))

    mod = relax_main(body, x=((3, 24), "float32"))
    tvm.ir.assert_structural_equal(PASS(mod), mod)
    mod = relax_main(lambda emit, x: emit(op.matmul(x, W)), x=((3, 24), "float32"))
    tvm.ir.assert_structural_equal(PadOutputs(None)(mod), mod)


def test_a_fourier_transform_equals_numpy(relax_main, tmp_path) -> None:
    rng = np.random.default_rng(0)
    w, bias = (rng.standard_normal(s, np.float32) for s in ((1, 64, 1, 257), (257,)))

    def body(emit, x):
        layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        y = emit(nn.conv2d(x, relax.const(w), strides=(1, 20), **layout))
        y = emit(op.add(y, relax.const(bias)))
        return emit(op.permute_dims(emit(op.multiply(y, y)), [0, 3, 1, 2]))

    lowered = lower(relax_main(body, x=((1, 1, 644, 1), "float32")), HOST.to_tvm())
    assert "272" in lowered.script()
    build_library(lowered, HOST, tmp_path / "library.so")
    x = np.random.default_rng(1).standard_normal((1, 1, 644, 1), np.float32)
    [got] = loaded(tmp_path / "library.so")(x)
    windows = np.lib.stride_tricks.sliding_window_view(x.ravel(), 64)[::20]
    expected = (windows @ w.reshape(64, 257) + bias) ** 2
    np.testing.assert_allclose(got[0, :, 0].T, expected, rtol=1e-3, atol=1e-3)

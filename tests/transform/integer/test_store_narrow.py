"""Tests of the dtypes that kernels store to memory between them."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from .qdq import TARGET, lowered

X, W = ((1, 4, 6, 6), "uint8"), ((4, 4, 1, 1), "int8")
RNG = np.random.default_rng(0)


def to_bytes(emit, acc):
    steps = emit(op.round(emit(op.multiply(emit(op.astype(acc, "float32")), f32(0.01)))))
    return emit(op.astype(emit(op.clip(steps, 0, 255)), "uint8"))


def conv(emit, x, w):
    return to_bytes(emit, emit(op.nn.conv2d(x, w, out_dtype="int32")))


def real(emit, x, zero=3):
    x = emit(op.subtract(emit(op.astype(x, "float32")), f32(zero)))
    return emit(op.multiply(x, f32(0.5)))


def f32(value):
    return relax.const(value, "float32")


def stored(low):
    """Return the dtype of every tensor that a kernel of ``main`` stores, except the last."""
    bindings = [b for block in low["main"].body.blocks for b in block.bindings]
    return [str(b.var.ty.dtype) for b in bindings if isinstance(b.value, relax.Call)][:-1]


def run(mod, inputs):
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(i) for i in inputs)).numpy()


def plain(mod):
    """Lower every operator to its own kernel."""
    with TARGET:
        return relax.transform.LegalizeOps()(mod)


def residual(emit, x, v, w):
    left, right = (real(emit, conv(emit, x, k)) for k in (v, w))
    return emit(op.nn.relu(emit(op.add(left, right))))


def summed(emit, x, w):
    return emit(op.sum(emit(op.astype(conv(emit, x, w), "int32")), [2, 3]))


def shared(emit, x, w):
    wide = real(emit, conv(emit, x, w))
    left, right = emit(op.permute_dims(wide, [0, 2, 3, 1])), emit(op.sum(wide, [2, 3]))
    return emit(op.add(left, emit(op.reshape(right, (1, 1, 1, 4)))))


def pooled(emit, x, w):
    return emit(op.nn.avg_pool2d(real(emit, conv(emit, x, w)), (3, 3)))


def returned(emit, x, w):
    return real(emit, conv(emit, x, w))


CASES = {
    "residual": (residual, 3, ["uint8"]),
    "sum": (summed, 2, ["uint8"]),
    # The reduced tensor stays as it is; the shared tensor is stored once, in 8 bits.
    "shared": (shared, 2, ["uint8", "float32"]),
    # A pooling window reads an element several times, so it is widened once before.
    "pool": (pooled, 2, ["float32"]),
    "result": (returned, 2, []),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_8_bit_tensors_are_stored_where_users_can_widen(relax_main, name):
    body, count, dtypes = CASES[name]
    shapes = dict(zip(("x", "v", "w"), (X, W, W)[:count], strict=False))
    mod = relax_main(body, **shapes)
    low = lowered(mod)
    assert stored(low) == dtypes
    inputs = [RNG.integers(*((0, 256) if d == "uint8" else (-90, 90)), s).astype(d)
              for s, d in shapes.values()]  # fmt: skip
    np.testing.assert_allclose(run(low, inputs), run(plain(mod), inputs), rtol=1e-5, atol=1e-5)

"""One matmul for Q, K and V becomes three, which attention reads without copies."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tests.transform.attention.graphs import Emit, constant, module
from tvmopt.device.gpus import GPUS
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention import SplitProjections
from tvmopt.transform.attention.fuse import find_attention
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

_X = ((2, 10, 32), "float32")
_RNG = np.random.default_rng(0)
_WEIGHTS = _RNG.standard_normal((32, 96)).astype(np.float32)
_BIAS = _RNG.standard_normal(96).astype(np.float32)


def _attend(emit: Emit, q, k, v):
    """Attention of (batch, head, length, size) tensors; the heads are merged."""
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
    mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
    return relax.op.reshape(emit(relax.op.permute_dims(mixed, [0, 2, 1, 3])), (2, 10, 32))


def _vit(emit: Emit, x):
    """``qkv(x).reshape(b, s, 3, h, d).permute(2, 0, 3, 1, 4).unbind(0)``"""
    packed = emit(relax.op.matmul(x, constant(_WEIGHTS)))
    packed = emit(relax.op.add(packed, constant(_BIAS)))
    packed = emit(relax.op.reshape(packed, (2, 10, 3, 4, 8)))
    parts = emit(relax.op.split(emit(relax.op.permute_dims(packed, [2, 0, 3, 1, 4])), 3, 0))
    return _attend(emit, *(emit(relax.op.squeeze(emit(parts[n]), [0])) for n in range(3)))


def _gpt(emit: Emit, x, sections=3):
    """``qkv(x).split(hidden, -1)``"""
    packed = emit(relax.op.matmul(x, constant(_WEIGHTS)))
    parts = emit(relax.op.split(packed, sections, -1))
    heads = [emit(relax.op.reshape(emit(parts[n]), (2, 10, 4, 8))) for n in range(3)]
    return _attend(emit, *(emit(relax.op.permute_dims(each, [0, 2, 1, 3])) for each in heads))


def _run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "body", [_vit, _gpt, lambda emit, x: _gpt(emit, x, [32, 64])], ids=["vit", "gpt", "places"]
)
def test_the_parts_are_matmuls_of_the_same_numbers(body) -> None:
    mod = module(body, _X)
    split = SplitProjections()(mod)
    assert "R.split" not in split.script()
    x = _RNG.standard_normal(_X[0]).astype(np.float32)
    np.testing.assert_allclose(_run(split, x), _run(mod, x), rtol=1e-4, atol=1e-5)
    [call] = find_attention(split["main"]).values()
    assert (call.problem.q_axes, call.problem.k_axes, call.problem.v_axes) == ("bshd",) * 3


def test_each_part_is_of_the_layer_of_the_whole() -> None:
    mod = with_layers(module(_vit, _X), ["qkv", "scores", "mixed"], [4, 5, 6])
    found = anchors(SplitProjections()(mod))
    assert [a.name for a in found] == ["qkv"] * 3 + ["scores", "mixed"]
    assert [a.index for a in found] == [4, 4, 4, 5, 6]


def test_layers_that_share_weights_share_the_parts() -> None:
    weights = constant(_WEIGHTS)

    def twice(emit: Emit, x):
        for _ in range(2):
            parts = emit(relax.op.split(emit(relax.op.matmul(x, weights)), 3, -1))
            heads = [emit(relax.op.reshape(emit(parts[n]), (2, 10, 4, 8))) for n in range(3)]
            heads = [emit(relax.op.permute_dims(each, [0, 2, 1, 3])) for each in heads]
            x = emit(_attend(emit, *heads))
        return x

    found = [a.call.args[1] for a in anchors(SplitProjections()(module(twice, _X)))]
    parts = [weight for weight in found if isinstance(weight, GenericConst)]
    assert len(parts) == 6 and all(parts[n].same_as(parts[n + 3]) for n in range(3))


def _gated(emit: Emit, x):
    packed = emit(relax.op.matmul(x, constant(_WEIGHTS)))
    parts = emit(relax.op.split(packed, 2, -1))
    return relax.op.multiply(emit(parts[0]), emit(relax.op.sigmoid(emit(parts[1]))))


def _projected(emit: Emit, x):
    parts = emit(relax.op.split(emit(relax.op.matmul(x, constant(_WEIGHTS))), 3, -1))
    weights = constant(_WEIGHTS[:, :32].copy())
    first, *others = (emit(relax.op.matmul(emit(parts[n]), weights)) for n in range(3))
    return relax.op.add(emit(relax.op.add(first, others[0])), others[1])


def _rows(emit: Emit, x):
    """A split of rows, not of columns."""
    packed = emit(relax.op.matmul(x, constant(_WEIGHTS[:, :32].copy())))
    parts = emit(relax.op.split(packed, 2, 1))
    transposed = emit(relax.op.permute_dims(emit(parts[1]), [0, 2, 1]))
    return relax.op.matmul(emit(parts[0]), transposed)


@pytest.mark.parametrize("body", [_gated, _projected, _rows])
def test_other_splits_stay(body) -> None:
    mod = module(body, _X)
    assert SplitProjections()(mod).same_as(mod)


def test_on_a_gpu_no_copy_is_left() -> None:
    shape = ((2, 128, 128), "float32")
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((128, 384)).astype(np.float32)

    def body(emit: Emit, x):
        packed = emit(relax.op.matmul(x, constant(weights)))
        packed = emit(relax.op.reshape(packed, (2, 128, 3, 2, 64)))
        parts = emit(relax.op.split(emit(relax.op.permute_dims(packed, [2, 0, 3, 1, 4])), 3, 0))
        q, k, v = (emit(relax.op.squeeze(emit(parts[n]), [0])) for n in range(3))
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
        mixed = emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))
        merged = emit(relax.op.reshape(mixed, (2, 128, 128)))
        return relax.op.matmul(merged, constant(weights[:, :128].copy()))

    mod = convert_module(module(body, shape), dtype="float16").mod
    lowered = lower(mod, GPUS["nvidia-h200"].to_tvm())
    names = sorted(
        v.name_hint.rstrip("0123456789")
        for v, f in lowered.functions_items()
        if isinstance(f, tirx.PrimFunc)
    )
    # A cast of the input, the matmul, attention, the last matmul.
    assert names == ["attention", "cast", "fused_matmul_cast", "matmul"]

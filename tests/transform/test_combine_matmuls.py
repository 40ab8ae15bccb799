"""CombineMatmuls: which matmuls become one, their numbers and layers, and which stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.transform import gemv_graphs
from tvmopt.device.target import resolve_target
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.combine_matmuls import CombineMatmuls
from tvmopt.transform.lower import lower

op = relax.op
CPU = tvm.target.Target({"kind": "llvm"})
K = 64
PAST = ((1, 30, 16), "float32")


def dense(seed: int, count: int) -> relax.Expr:
    values = np.random.default_rng(seed).standard_normal((K, count)).astype("float32")
    return relax.const(values)


def packed(seed: int, count: int, **how) -> relax.Call:
    return gemv_graphs.packed(seed, count, depth=K, dtype="float32", **how).call()


def cached(*weights, rows=1, behind=lambda emit, y: y):
    """Matmuls whose results are appended to caches."""

    def body(emit, x, past):
        out = []
        for weight in weights:
            weight = emit(weight) if isinstance(weight, relax.Call) else weight
            y = behind(emit, emit(op.matmul(x, weight)))
            y = emit(op.reshape(y, (1, -1, 16)))
            out.append(emit(op.concat([past, y], 1)))
        return relax.Tuple(out)

    return body


def combined(relax_main, body, rows=1):
    mod = relax_main(body, x=((1, rows, K), "float32"), past=PAST)
    count = len(anchors(mod))
    mod = with_layers(mod, [f"layer{n}" for n in range(count)], range(count))
    return mod, CombineMatmuls()(mod)


def results(mod, rows):
    rng = np.random.default_rng(7)
    given = [rng.standard_normal(s).astype("float32") for s in ((1, rows, K), PAST[0])]
    return outputs(mod, given)


def outputs(mod, given):
    machine = relax.VirtualMachine(tvm.compile(lower(mod, CPU), CPU), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, given))
    return [got.numpy()] if isinstance(got, tvm.runtime.Tensor) else [y.numpy() for y in got]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "weights",
    [
        (dense(0, 32), dense(1, 16), dense(2, 16)),
        (packed(0, 32), packed(1, 16)),
        (packed(0, 32, zero=None), packed(1, 16, zero=None)),
        (packed(0, 32, bits=8, zero=128.0), packed(1, 48, bits=8, zero=128.0)),
    ],
    ids=["dense", "int4", "zero points", "int8"],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_matmuls_of_a_few_rows_become_one_with_the_same_numbers(relax_main, weights, rows) -> None:
    mod, made = combined(relax_main, cached(*weights), rows)
    [one] = anchors(made)
    assert (one.name, one.index) == ("layer0", 0)
    assert int(one.var.ty.shape[-1]) == sum(int(w.ty.shape[1]) for w in weights)
    for got, want in zip(results(made, rows), results(mod, rows), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "left"),
    [
        ((packed(0, 32), packed(1, 16, block=16)), 2),  # other blocks
        ((packed(0, 32), packed(1, 16, zero=7.0)), 2),
        ((packed(0, 32), packed(1, 16, bits=8)), 2),
        ((dense(0, 32), packed(1, 16), dense(2, 32)), 2),  # the dense ones become one
    ],
)
def test_only_weights_of_a_kind_are_combined(relax_main, weights, left) -> None:
    assert len(anchors(combined(relax_main, cached(*weights))[1])) == left


def test_many_rows_stay(relax_main) -> None:
    assert len(anchors(combined(relax_main, cached(dense(0, 32), dense(1, 16)), 9)[1])) == 2


def test_cheap_operators_may_follow(relax_main) -> None:
    bias = relax.const(np.ones(32, "float32"))
    body = cached(dense(0, 32), dense(1, 32), behind=lambda emit, y: emit(op.add(y, bias)))
    assert len(anchors(combined(relax_main, body)[1])) == 1


def test_epilogues_that_would_need_kernels_stay(relax_main) -> None:
    """SiLU of a gate: the second matmul's kernel multiplies by it."""

    def body(emit, x, past):
        gate, up = (emit(op.matmul(x, dense(seed, 32))) for seed in (0, 1))
        gated = emit(op.multiply(emit(op.nn.silu(gate)), up))
        return emit(op.matmul(gated, relax.const(np.ones((32, 8), "float32"))))

    assert len(anchors(combined(relax_main, body)[1])) == 3


def half(seed: int, count: int, **how) -> relax.Call:
    return gemv_graphs.packed(seed, count, depth=K, **how).call()


def gated(*weights, join=op.multiply, further=False, other=False):
    """SiLU of the first matmul's result times the second's."""

    def body(emit, x, past):
        gate, up = (emit(op.matmul(x, emit(w), out_dtype="float32")) for w in weights)
        silu = emit(op.multiply(gate, emit(op.sigmoid(gate))))
        out = emit(op.astype(emit(join(silu, up)), "float16"))
        wide = emit(op.astype(out, "float32")) if other else out
        return relax.Tuple([wide, emit(op.sum(up))]) if further else wide

    return body


@pytest.mark.parametrize("other", [False, True])
def test_gate_and_up_in_int4_become_one(relax_main, other) -> None:
    body = gated(half(0, 32), half(1, 32), other=other)
    mod = relax_main(body, x=((1, 3, K), "float16"), past=PAST)
    made = CombineMatmuls()(with_layers(mod, ["gate", "up"], [4, 5]))
    [one] = anchors(made)
    assert (one.name, one.index) == ("gate", 4) and int(one.var.ty.shape[-1]) == 64
    x = np.random.default_rng(5).standard_normal((1, 3, K)).astype("float16")
    past = np.zeros(PAST[0], "float32")
    got, want = (outputs(m, [x, past]) for m in (made, mod))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        gated(half(0, 32), half(1, 32), further=True),  # something else reads up
        gated(half(0, 32), half(1, 1)),  # other widths
        gated(half(0, 32), half(1, 32, block=16)),
        gated(half(0, 32, bits=8), half(1, 32, bits=8)),
        gated(half(0, 32), half(1, 32), join=lambda a, b: op.multiply(op.nn.softmax(a), b)),
        gated(half(0, 32, dtype="float32"), half(1, 32, dtype="float32")),
    ],
    ids=["read", "widths", "blocks", "int8", "no elementwise operator joins", "float32"],
)
def test_other_pairs_stay(relax_main, body) -> None:
    mod = relax_main(body, x=((1, 3, K), "float16"), past=PAST)
    assert len(anchors(CombineMatmuls()(with_layers(mod, ["gate", "up"], [4, 5])))) == 2


def test_outputs_of_the_network_stay(relax_main) -> None:
    def body(emit, x, past):
        return relax.Tuple([emit(op.matmul(x, dense(seed, 32))) for seed in (0, 1)])

    assert len(anchors(combined(relax_main, body)[1])) == 2


def test_a_gpu_combines_and_a_cpu_does_not(relax_main) -> None:
    mod, _ = combined(relax_main, cached(packed(0, 32), packed(1, 16)))
    for device, count in (("nvidia-h200", 1), ("host", 2)):
        lowered = lower(mod, resolve_target(device).to_tvm())
        calls = [b.value for block in lowered["main"].body.blocks for b in block.bindings]
        names = [
            c.args[0].name_hint
            for c in calls
            if isinstance(c, relax.Call) and c.op.name == "relax.call_tir"
        ]
        assert sum("matmul" in name for name in names) == count

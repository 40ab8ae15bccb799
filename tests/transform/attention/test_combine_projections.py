"""One matmul for Q, K and V: where, its numbers and layers, and what reads it in place."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tests.emulator.cuda import run
from tests.kernels.attention.reference import attention, check
from tests.transform.attention.graphs import Emit, constant, module
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.attention.problem import problem_of
from tvmopt.kernels.emit import emit as emit_kernel
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention import CombineProjections, FuseAttention
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

op = relax.op
X = ((2, 10, 32), "float32")
RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / 4


WQ, WK, WV = (random(32, 32) for _ in range(3))
BQ, BV = random(32), random(1, 1, 32)


def heads(emit: Emit, y, count=4):
    """(batch, length, hidden) -> (batch, heads, length, size)"""
    batch, length, hidden = (int(extent) for extent in y.ty.shape)
    y = emit(op.reshape(y, (batch, length, count, hidden // count)))
    return emit(op.permute_dims(y, [0, 2, 1, 3]))


def attend(emit: Emit, q, k, v):
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    mixed = emit(op.matmul(emit(op.nn.softmax(emit(op.multiply(scores, constant(0.3))))), v))
    return op.permute_dims(mixed, [0, 2, 1, 3])


def project(emit: Emit, x, weight, bias=None):
    y = emit(op.matmul(x, weight if isinstance(weight, relax.Expr) else constant(weight)))
    return y if bias is None else emit(op.add(y, constant(bias)))


def whisper(emit: Emit, x):
    """Self-attention; K has no bias, and the bias of V comes first and has three axes."""
    q, k = project(emit, x, WQ, BQ), project(emit, x, WK)
    v = emit(op.add(constant(BV), project(emit, x, WV)))
    return attend(emit, *(heads(emit, y) for y in (q, k, v)))


def rows(emit: Emit, x):
    """Matmuls of matrices, as of ONNX's Gemm, whose result is reshaped twice."""
    flat = emit(op.reshape(x, (20, 32)))
    found = (project(emit, flat, w, BQ) for w in (WQ, WK, WV))
    return attend(emit, *(heads(emit, emit(op.reshape(y, (2, 10, 32)))) for y in found))


def grouped(emit: Emit, x):
    """Four heads of Q share two of K and V."""
    q = heads(emit, project(emit, x, WQ))
    k, v = (heads(emit, project(emit, x, w[:, :16].copy()), 2) for w in (WK, WV))
    k, v = (emit(op.repeat(each, 2, 1)) for each in (k, v))
    return attend(emit, q, k, v)


def cross(emit: Emit, x):
    """K and V are of another tensor."""
    q = project(emit, x, WQ)
    memory = emit(op.nn.relu(x))
    k, v = (project(emit, memory, w, BQ) for w in (WK, WV))
    return attend(emit, *(heads(emit, y) for y in (q, k, v)))


def fused(body, names=None) -> tvm.IRModule:
    """Return a module whose attention is one function."""
    mod = module(body, X)
    if names is not None:
        mod = with_layers(mod, names, range(len(names)))
    return FuseAttention(attention_function)(mod)


def matmuls(mod: tvm.IRModule) -> list[relax.Call]:
    return [anchor.call for anchor in anchors(mod)]


def results(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def problem(mod: tvm.IRModule):
    """Return the problem of the only attention function."""
    [found] = [
        problem_of(func) for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)
    ]
    assert found is not None
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("body", "ranges", "columns"),
    [
        (whisper, ((0, 12), (4, 12), (8, 12)), [96]),
        (rows, ((0, 12), (4, 12), (8, 12)), [96]),
        (grouped, ((0, 8), (4, 8), (6, 8)), [64]),
        (cross, (None, (0, 8), (4, 8)), [32, 64]),
    ],
)
def test_one_matmul_of_the_same_numbers(body, ranges, columns) -> None:
    before = fused(body)
    after = CombineProjections(attention_function)(before)
    assert [int(call.ty.shape[-1]) for call in matmuls(after)] == columns
    found = problem(after)
    assert (found.q_heads, found.k_heads, found.v_heads) == ranges
    x = RNG.standard_normal(X[0]).astype(np.float32)
    np.testing.assert_allclose(results(after, x), results(before, x), rtol=1e-5, atol=1e-5)


def test_it_takes_the_layer_of_the_first_one() -> None:
    before = fused(cross, ["q", "k", "v", "scores", "mixed"])
    after = anchors(CombineProjections(attention_function)(before))
    assert [(anchor.name, anchor.index) for anchor in after] == [("q", 0), ("k", 1)]


def test_layers_that_share_weights_share_the_combined_weight() -> None:
    weights = [constant(each) for each in (WQ, WK, WV)]

    def twice(emit: Emit, x):
        for _ in range(2):
            q, k, v = (heads(emit, project(emit, x, weight)) for weight in weights)
            x = emit(op.reshape(emit(attend(emit, q, k, v)), (2, 10, 32)))
        return x

    first, second = matmuls(CombineProjections(attention_function)(fused(twice)))
    assert isinstance(first.args[1], GenericConst) and first.args[1].same_as(second.args[1])


def also_read(emit: Emit, x):
    """K is a result, too, as of a cache."""
    q, k, v = (heads(emit, project(emit, x, w)) for w in (WQ, WK, WV))
    v = emit(op.add(v, v))
    return relax.Tuple([emit(attend(emit, q, k, v)), k])


def by_length(emit: Emit, x):
    """The heads are not the inner axis of the matmuls' columns."""
    found = (project(emit, x, w) for w in (WQ, WK, WV))
    return attend(emit, *(emit(op.reshape(y, (2, 4, 10, 8))) for y in found))


def computed(emit: Emit, x):
    """Weights that are not constant."""
    weight = emit(op.reshape(emit(op.strided_slice(x, [0, 1], [0, 0], [2, 1])), (2, 32)))
    weight = emit(op.matmul(emit(op.permute_dims(weight, [1, 0])), weight))
    return attend(emit, *(heads(emit, project(emit, x, weight)) for _ in range(3)))


def rotated(emit: Emit, x):
    """Other operators between the matmuls and attention."""
    found = (project(emit, x, w) for w in (WQ, WK, WV))
    return attend(emit, *(heads(emit, emit(op.sin(y))) for y in found))


def of_rows(emit: Emit, x):
    """A sum whose constant is one of rows, not of columns."""
    shift = constant(random(10, 32))
    found = (emit(op.add(project(emit, x, w), shift)) for w in (WQ, WK, WV))
    return attend(emit, *(heads(emit, y) for y in found))


@pytest.mark.parametrize("body", [also_read, by_length, computed, rotated, of_rows])
def test_matmuls_that_stay(body) -> None:
    before = fused(body)
    assert CombineProjections(attention_function)(before).same_as(before)


def test_they_stay_where_no_kernel_reads_ranges() -> None:
    before = fused(whisper)
    assert CombineProjections(lambda problem: None)(before).same_as(before)


def encoder_attention(emit: Emit, x):
    found = (project(emit, x, random(64, 64), random(64)) for _ in range(3))
    mixed = emit(attend(emit, *(heads(emit, y, 2) for y in found)))
    merged = emit(op.reshape(mixed, (2, 40, 64)))
    return op.matmul(merged, constant(random(64, 8)))


def kernels(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    found = mod.functions_items()
    return {
        var.name_hint.rstrip("0123456789"): func
        for var, func in found
        if isinstance(func, tirx.PrimFunc)
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("gpu", ["nvidia-h200", "nvidia-a100"])
def test_the_kernels_on_a_gpu(gpu: str) -> None:
    """The matmul, and attention that reads its result in place, emulated."""
    mod = convert_module(module(encoder_attention, ((2, 40, 64), "float32")), dtype="float16").mod
    found = kernels(lower(mod, GPUS[gpu].to_tvm()))
    assert set(found) == {"cast", "fused_matmul_add_cast", "attention", "matmul"}
    func = found["attention"]
    of = problem_of(func)
    assert of is not None and (of.q_heads, of.k_heads, of.v_heads) == ((0, 6), (2, 6), (4, 6))
    kernel = emit_kernel(func, policy_of(func, GPUS[gpu]).ranked[0].hint)
    y = RNG.standard_normal((2, 40, 6, 32)).astype(np.float16)
    [got] = run(kernel, [y, y, y], [np.full((2, 40, 2, 32), np.nan, np.float16)], GPUS[gpu])
    check(of, got, attention(of, [y, y, y]))


def test_a_skipped_layer_keeps_its_dtype() -> None:
    names = ["q", "k", "v", "scores", "mixed", "out"]
    mod = with_layers(module(encoder_attention, ((2, 40, 64), "float32")), names, range(6))
    converted = convert_module(mod, dtype="bfloat16", skip_layers=[2]).mod
    lowered = lower(converted, GPUS["nvidia-h200"].to_tvm())
    of = problem_of(kernels(lowered)["attention"])
    assert of is not None and (of.q_heads, of.k_heads, of.v_heads) == ((0, 4), (2, 4), None)
    layers = [str(name) for name in lowered["main"].attrs["tvmopt.layer_names"]]
    assert layers == ["q", "v", "out"]


def test_matmuls_stay_on_a_cpu() -> None:
    names = ["q", "k", "v", "scores", "mixed", "out"]
    mod = with_layers(module(encoder_attention, ((2, 40, 64), "float32")), names, range(6))
    lowered = lower(mod, tvm.target.Target({"kind": "llvm"}))
    layers = [str(name) for name in lowered["main"].attrs["tvmopt.layer_names"]]
    assert [name for name in layers if name in "qkv"] == ["q", "k", "v"]

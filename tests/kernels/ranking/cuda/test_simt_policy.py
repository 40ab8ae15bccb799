"""The ranking of memory-bound CUDA families: distinct configurations, in a fixed order."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cuda.functions import int4_product, lowered, product, sums
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.emit import emit, hint_from_dict
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.ranked import FEATURES, Ranked

op, nn = relax.op, relax.op.nn
H, F = "float16", "float32"
H200, T4 = GPUS["nvidia-h200"], GPUS["nvidia-t4"]
FUNCTIONS = {
    "copy": (lambda: lowered(nn.relu, ((128, 8192), H)), "gpu_elementwise"),
    "prime": (lambda: lowered(op.add, ((13, 17), F), ((13, 17), F)), "gpu_elementwise"),
    "transpose": (
        lambda: lowered(lambda x: op.permute_dims(x, [0, 2, 3, 1]), ((8, 64, 56, 56), H)),
        "gpu_transpose",
    ),
    "sum": (lambda: sums(1, ((4096, 1024), H)), "gpu_row_reduction"),
    "softmax": (
        lambda: lowered(lambda x: nn.softmax(x, -1), ((512, 1000), H)), "gpu_row_reduction",
    ),
    "columns": (lambda: sums(0, ((4096, 1024), H)), "gpu_column_reduction"),
    "channels": (
        lambda: lowered(lambda x: nn.softmax(x, 1), ((2, 19, 64, 64), F)), "gpu_column_walk",
    ),
    "gemv": (lambda: product(1, 4096, 4096), "gpu_gemv"),
    "int4": (lambda: int4_product(1, 1024, 4096, 128), "gpu_gemv"),
    "pool": (
        lambda: lowered(
            lambda x: nn.max_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), ((8, 28, 28, 64), H)
        ),
        "gpu_window",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FUNCTIONS)
def case(request: pytest.FixtureRequest) -> tuple[tirx.PrimFunc, str]:
    make, template = FUNCTIONS[request.param]
    return make(), template


def test_hints_are_distinct_and_survive_json(case: tuple[tirx.PrimFunc, str]) -> None:
    policy = DefaultPolicy(case[0], H200)
    assert policy.reason is None
    hints = policy.emit_config(10**6)
    assert len({hint.config_id for hint in hints}) == len(hints) > 1
    assert policy.emit_config(3) == hints[:3]
    for hint in hints[:20]:
        assert hint_from_dict(json.loads(json.dumps(hint.to_dict()))) == hint


def test_the_template_that_fits_comes_first(case: tuple[tirx.PrimFunc, str]) -> None:
    func, template = case
    for arch in (H200, T4):
        ranked = DefaultPolicy(func, arch).ranked
        assert ranked[0].hint.template == template
        assert [r.cycles for r in ranked] == sorted(r.cycles for r in ranked)
        assert all(len(r.features) == FEATURES for r in ranked[:50])


@pytest.mark.sample(5)
def test_most_of_what_is_proposed_applies(case: tuple[tirx.PrimFunc, str]) -> None:
    func, _ = case
    hints = DefaultPolicy(func, H200).emit_config(12)
    for hint in hints:
        emit(func, hint)


def test_the_order_is_the_same_every_time(case: tuple[tirx.PrimFunc, str]) -> None:
    again = tvm.ir.load_json(tvm.ir.save_json(case[0]))
    first, second = (DefaultPolicy(f, H200).emit_config(20) for f in (case[0], again))
    assert first == second


def test_what_no_template_takes_has_a_reason() -> None:
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 8), F))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(nn.relu(x))
        builder.emit_func_output(out)
    module = relax.transform.LegalizeOps()(builder.get())
    [func] = [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]
    policy = DefaultPolicy(func, H200)
    assert policy.reason == "symbolic shape"
    assert policy.emit_config(5) == []


def test_every_reduction_has_a_fallback() -> None:
    ranked = DefaultPolicy(lowered(op.matmul, ((64, 64), F), ((64, 64), F)), H200).ranked
    assert "gpu_fallback" in {r.hint.template for r in ranked}


def test_more_traffic_and_fewer_blocks_cost_more() -> None:
    full = StreamCost(blocks=4096, threads=256, compulsory_bytes=2**30)
    twice = dataclasses.replace(full, compulsory_bytes=2**31)
    few = dataclasses.replace(full, blocks=8)
    assert full.cycles(H200) < min(twice.cycles(H200), few.cycles(H200))
    assert full.cycles(H200) < full.cycles(T4)
    too_much = StreamCost(blocks=1, threads=256, compulsory_bytes=1.0, smem_bytes=2**20)
    assert too_much.cycles(H200) == float("inf")


def test_families_differ_where_the_model_may_err() -> None:
    one, two = (
        Ranked(GemvConfig("gpu_gemv", H200, 1, reduce_threads=share, vector_elements=8), 1.0)
        for share in (32, 128)
    )
    assert one.hint.group != two.hint.group


@pytest.mark.parametrize(
    ("build", "operands"),
    [
        (relax.op.less, [((64, 128), "float32")] * 2),
        (lambda x: relax.op.sum(x, [0]), [((64, 128), "int64")]),
        (lambda x: relax.op.astype(x, "int8"), [((64, 128), "float64")]),
    ],
)
def test_vectors_are_not_wider_than_cuda_can_say(build, operands) -> None:
    ranked = DefaultPolicy(lowered(build, *operands), H200).ranked
    size = {"float32": 4}.get(operands[0][1], 8)
    assert ranked and max(getattr(r.hint, "vector_elements", 1) for r in ranked) * size <= 32

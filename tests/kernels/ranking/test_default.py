"""The CPU ranking: distinct, serialisable hints in an order that only the function determines."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.ranking.functions import ARCH, convolution, function, matmul
from tvmopt import host
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.tile_config import TileConfig
from tvmopt.kernels.emit import NotApplicable, emit, hint_from_dict
from tvmopt.kernels.families import by_name
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import DefaultPolicy

op, nn = relax.op, relax.op.nn
_FUNCTIONS = {
    "conv": lambda: convolution(padding=1),
    "conv_1x1": lambda: convolution(kernel=1),
    "depthwise": lambda: convolution(channels=32, outputs=32, groups=32, padding=1),
    "grouped": lambda: convolution(channels=32, outputs=32, groups=2),
    "matmul": matmul,
    "row": lambda: matmul(rows=1),
    "prime": lambda: matmul(13, 17, 19),
    "max_pool": lambda: function(
        lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), (1, 28, 28, 32)
    ),
    "softmax": lambda: function(lambda x: nn.softmax(x, -1), (64, 128)),
    "mean": lambda: function(lambda x: op.mean(x, [1, 2]), (1, 7, 7, 64)),
    "argmax": lambda: function(lambda x: op.argmax(x, 1), (1, 19, 32, 32)),
    "relu": lambda: function(nn.relu, (8, 17, 13)),
    "transpose": lambda: function(lambda x: op.permute_dims(x, [0, 2, 1]), (3, 40, 50)),
}


@pytest.fixture(scope="module", params=_FUNCTIONS)
def func(request) -> tirx.PrimFunc:
    return _FUNCTIONS[request.param]()


def test_hints_are_distinct_and_at_most_topk(func) -> None:
    policy = DefaultPolicy(func, ARCH)
    assert policy.reason is None
    every = policy.emit_config(10**6)
    assert every
    assert len(set(every)) == len(every)
    assert len({hint.config_id for hint in every}) == len(every)
    for topk in (0, 1, 3, 20):
        assert policy.emit_config(topk) == every[:topk]


def test_the_order_is_the_same_every_time(func) -> None:
    again = tvm.ir.load_json(tvm.ir.save_json(func))
    first, second = (DefaultPolicy(f, ARCH).emit_config(50) for f in (func, again))
    assert first == second


def test_hints_name_a_template_their_arch_and_survive_json(func) -> None:
    for hint in DefaultPolicy(func, ARCH).emit_config(30):
        assert hint.template in by_name()
        assert hint.arch == ARCH
        assert hint_from_dict(json.loads(json.dumps(hint.to_dict()))) == hint
        assert str(hint).startswith(hint.template)


def test_the_first_hints_apply(func) -> None:
    """A hint that its own template refuses would waste a measurement."""
    refused = []
    for hint in DefaultPolicy(func, ARCH).emit_config(8):
        try:
            emit(func, hint)
        except NotApplicable as error:
            refused.append(hint)
            assert not isinstance(hint, TileConfig), (
                f"{hint} is of a template with a model: {error}"
            )
    assert len(refused) <= 2, refused


def test_cycles_and_features_are_numbers(func) -> None:
    policy = DefaultPolicy(func, ARCH)
    assert policy.cycles == policy.ranked[0].cycles > 0
    for ranked in policy.ranked:
        assert 0 < ranked.cycles < 1e12
        assert len(ranked.features) == len(policy.ranked[0].features)
        assert all(abs(feature) < 1e12 for feature in ranked.features)


@pytest.mark.parametrize(("shape", "reason"), [((), "no loop"), ((0, 4), "zero-sized dimension")])
def test_functions_without_loops_have_a_reason_and_no_hints(shape, reason) -> None:
    func = function(lambda x: op.add(x, x), shape)
    policy = DefaultPolicy(func, ARCH)
    assert policy.reason is not None
    assert reason in policy.reason
    assert policy.ranked == []
    assert policy.emit_config(20) == []


def test_a_symbolic_shape_has_a_reason() -> None:
    rows = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.add(x, x)))
    mod = relax.transform.LegalizeOps()(builder.get())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    policy = DefaultPolicy(func, ARCH)
    assert policy.reason == "symbolic shape"
    assert policy.emit_config(20) == []
    assert schedule_function(func, ARCH).rule == "unscheduled: symbolic shape"


def test_one_core_has_no_parallel_loop() -> None:
    one = dataclasses.replace(ARCH, cores=1)
    for make in (matmul, _FUNCTIONS["conv"], _FUNCTIONS["depthwise"]):
        func = make()
        hint = DefaultPolicy(func, one).emit_config(1)[0]
        assert hint.parallel_loops == 0
        assert "T.parallel" not in emit(func, hint).mod.script()


def test_a_large_function_is_shared_out_over_the_cores() -> None:
    func = convolution(56, 64, 64, padding=1)
    hint = DefaultPolicy(func, ARCH).emit_config(1)[0]
    assert hint.template == "register_tile"
    assert hint.parallel_loops > 0


def test_a_constant_weight_is_packed_when_the_model_is_built() -> None:
    func = matmul()
    assert DefaultPolicy(func, ARCH).emit_config(1)[0].packing == "prepacked"
    unknown = func.without_attr("layout_free_buffers")
    hints = DefaultPolicy(unknown, ARCH).emit_config(10**6)
    assert all(getattr(hint, "packing", "none") != "prepacked" for hint in hints)


def test_a_better_tile_is_preferred_to_none() -> None:
    """One row by one vector loads twice for every multiply-add, and each waits for the last."""
    ranked = DefaultPolicy(matmul(128, 128, 128), ARCH).ranked
    best = next(r.hint.register_tile for r in ranked if isinstance(r.hint, TileConfig))
    assert best[0] * best[1] // 16 >= 8
    assert best[0] * best[1] // 16 <= ARCH.vector_registers


@pytest.mark.parametrize(
    ("name", "bits", "registers", "isa"),
    [
        ("skylake-avx512", 512, 32, "x86_64"),
        ("haswell", 256, 16, "x86_64"),
        ("nehalem", 128, 16, "x86_64"),
    ],
)
def test_an_arch_is_built_from_a_name_without_the_device(name, bits, registers, isa) -> None:
    if host.isa() != "x86_64":
        pytest.skip("LLVM takes the host's triple, so these names are x86's")
    arch = resolve_target(name, 2).arch()
    assert (arch.mcpu, arch.isa, arch.cores) == (name, isa, 2)
    assert (arch.simd_bits, arch.vector_registers) == (bits, registers)
    hints = DefaultPolicy(matmul(), arch).emit_config(20)
    assert hints
    for hint in hints:
        if hint.template == "register_tile":
            accumulators = hint.register_tile[0] * -(
                -hint.register_tile[1] // arch.lanes("float32")
            )
            assert accumulators < registers


def test_a_narrower_cpu_gets_other_tiles() -> None:
    narrow = dataclasses.replace(ARCH, simd_bits=256, vector_registers=16)
    func = matmul(128, 128, 128)
    wide_hint, narrow_hint = (
        DefaultPolicy(func, arch).emit_config(1)[0] for arch in (ARCH, narrow)
    )
    assert wide_hint.register_tile != narrow_hint.register_tile

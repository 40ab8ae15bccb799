"""Fused attention by mma.sync, on a GPU or emulated: outputs against NumPy; its family."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.cuda import ORDERS, run
from tests.kernels.attention.reference import (
    HEAD_RANGES,
    assert_first_choice,
    attention,
    check,
    numpy_dtype,
    operands,
    problem,
    with_masked_row,
)
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.attention import MaskedBy
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.mma.attention.config import ATTENTION, MmaAttentionConfig
from tvmopt.kernels.cuda.mma.attention.cost import mma_attention_cost
from tvmopt.kernels.cuda.mma.attention.family import MmaAttention
from tvmopt.kernels.cuda.mma.attention.kernel import mma_attention
from tvmopt.kernels.cuda.toolchain.compiler import compile_cubin
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.workload import Refusal, Workload

A100, L4, H200 = GPUS["nvidia-a100"], GPUS["nvidia-l4"], GPUS["nvidia-h200"]
FIRST, LAST = MaskedBy.FIRST_KEY, MaskedBy.LAST_KEY


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """The GPU, or None to emulate one; skip without a GPU of Ampere or later."""
    if request.param == "emulated":
        return None
    gpu = tvm.cuda()
    if not gpu.exist or float(gpu.compute_version) < 8:
        pytest.skip("needs a GPU of compute capability 8.0")
    return gpu


def config(arch=A100, **fields) -> MmaAttentionConfig:
    """A configuration for an A100."""
    return MmaAttentionConfig(ATTENTION, arch, **fields)


PLAIN = config()
DECODE = config(row_warps=1, key_warps=4, stages=3)
# Fields that differ from the ``problem``'s, and the configuration.
CASES = [
    ({"kv_heads": 1, "queries": 90}, config(row_tiles=2, row_warps=2, tile_keys=48, stages=3)),
    ({"causal": FIRST, "queries": 150}, config(row_warps=2, query_registers=True)),
    ({"causal": LAST, "head_size": 32, "batch": 2}, config(row_warps=2, key_warps=2)),
    ({"causal": LAST, "queries": 150, "keys": 70}, config(tile_keys=32, split_k=2)),
    ({"causal": FIRST, "heads": 6, "kv_heads": 3, "keys": 99}, config(row_warps=2)),
    ({"head_size": 80, "dtype": "bfloat16", "keys": 200}, config(stages=3)),
    (
        {"head_size": 256, "keys": 130, "queries": 60, "heads": 1, "kv_heads": 1},
        config(tile_keys=32),
    ),
    ({"head_size": 128, "queries": 70, "keys": 140}, config(row_tiles=2, stages=4)),
    ({"mask_shape": (1, 2, 1, 150), "mask_dtype": "bool", "q_axes": "bshd"}, PLAIN),
    ({"mask_shape": (1, 1, 100, 150), "mask_dtype": "float16", "k_axes": "bshd"}, PLAIN),
    (
        {"mask_shape": (1, 2, 100, 150), "mask_dtype": "float32", "causal": FIRST,
         "v_axes": "hsbd", "out_axes": "bshd"},
        config(split_k=3),
    ),
    ({"mask_shape": (1, 1, 100, 150), "mask_dtype": "bfloat16", "dtype": "bfloat16"}, PLAIN),
    ({"head_size": 40, "value_size": 72}, PLAIN),
    ({"head_size": 72, "value_size": 40, "queries": 2}, dataclasses.replace(DECODE, split_k=3)),
    ({"queries": 1, "keys": 1000, "heads": 8}, dataclasses.replace(DECODE, split_k=5)),
    (
        {"queries": 3, "keys": 333, "heads": 8, "causal": LAST, "batch": 2, "dtype": "bfloat16",
         "q_axes": "bshd", "out_axes": "bshd"},
        dataclasses.replace(DECODE, split_k=2),
    ),
    (
        {"queries": 16, "keys": 400, "heads": 8, "mask_shape": (1, 1, 1, 400),
         "mask_dtype": "bool"},
        config(row_warps=2, key_warps=4, tile_keys=128, split_k=4),
    ),
]  # fmt: skip


def _outputs(p, c, inputs, device, orders=("chance",)):
    func = mma_attention(p, c)
    assert not isinstance(func, Refusal), func.reason
    shape, dtype = p.shapes()[-1]
    empty = np.full(shape, np.nan, numpy_dtype(dtype))
    if device is None:
        return [run(func, inputs, [empty], c.arch, order=order)[0] for order in orders]
    here = next(gpu for gpu in GPUS.values() if gpu.sm == round(10 * float(device.compute_version)))
    func = mma_attention(p, dataclasses.replace(c, arch=here))
    built = build_kernels({"main": func}, here)
    out = tvm.runtime.tensor(empty, device)
    built["main"](*(tvm.runtime.tensor(x, device) for x in inputs), out)
    return [out.numpy()]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("fields", "config"), CASES)
def test_attention(fields, config, device):
    p = problem(**fields)
    inputs = operands(p)
    [got] = _outputs(p, config, inputs, device)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "config"), zip(HEAD_RANGES, [PLAIN, config(split_k=2), DECODE], strict=True)
)
def test_operands_that_are_ranges_of_heads(fields, config, device):
    p = problem(**fields)
    inputs = operands(p)
    [got] = _outputs(p, config, inputs, device)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "c",
    [
        config(row_warps=2, stages=3),
        dataclasses.replace(DECODE, split_k=2),
        # Both kernels are launched before the one before has ended.
        dataclasses.replace(DECODE, arch=H200, split_k=3),
    ],
)
def test_results_do_not_depend_on_when_copies_complete(c):
    p = problem(causal=LAST, queries=20, keys=300, kv_heads=1)
    inputs = operands(p)
    first, *others = _outputs(p, c, inputs, None, ORDERS)
    check(p, first, attention(p, inputs))
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("c", [PLAIN, dataclasses.replace(DECODE, tile_keys=64)])
def test_tiles_that_see_no_key_give_zeros(c):
    p = problem(causal=LAST, queries=150, keys=70)
    inputs = operands(p)
    for got in _outputs(p, c, inputs, None, ORDERS):
        assert not got[:, :, :80].any()
        check(p, got, attention(p, inputs))


@pytest.mark.sample(2)
@pytest.mark.parametrize("c", [PLAIN, dataclasses.replace(DECODE, split_k=3)])
@pytest.mark.parametrize("mask_dtype", ["bool", "float32"])
def test_masked_rows(mask_dtype, c, device):
    p = problem(mask_shape=(1, 1, 100, 150), mask_dtype=mask_dtype)
    inputs, want = with_masked_row(p, mask_dtype)
    [got] = _outputs(p, c, inputs, device)
    check(p, got, want)


@settings(max_examples=3, deadline=None)
@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 150),
    size=st.sampled_from([32, 48, 56, 64, 96]),
    shared=st.sampled_from([1, 2, 5]),
    causal=st.sampled_from(MaskedBy),
    row_warps=st.sampled_from([1, 2]),
    key_warps=st.sampled_from([1, 2]),
    split_k=st.integers(1, 3),
)
def test_any_lengths(queries, keys, size, shared, causal, row_warps, key_warps, split_k):
    p = problem(
        heads=2 * shared, queries=queries, keys=keys, head_size=size, value_size=size, causal=causal
    )
    c = config(
        row_warps=row_warps, key_warps=key_warps, tile_keys=32 * key_warps,
        split_k=min(split_k, -(-keys // (32 * key_warps))),
    )  # fmt: skip
    inputs = operands(p)
    [got] = _outputs(p, c, inputs, None)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(3)
@pytest.mark.parametrize("gpu", [A100, L4, H200], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("queries", [1, 512])
def test_first_choices_compile(gpu, queries, needs_nvcc):
    p = problem(heads=32, kv_heads=8, queries=queries, keys=4096, head_size=128, value_size=128)
    found = next(r for r in policy_of(attention_function(p), gpu).ranked
                 if r.hint.template == ATTENTION)  # fmt: skip
    kernel = mma_attention(p, found.hint)
    source = build_kernels({"main": kernel}, gpu).imports[0].inspect_source()
    assert ("griddepcontrol.wait" in source) == (gpu is H200)
    assert compile_cubin(source, gpu).startswith(b"\x7fELF")


@pytest.fixture
def needs_nvcc():
    """Skip without nvcc."""
    import shutil

    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")


@pytest.mark.parametrize("gpu", [A100, L4], ids=lambda gpu: gpu.name)
def test_the_family_is_the_first_choice(gpu):
    p = problem(heads=16, kv_heads=4, queries=512, keys=512)
    assert_first_choice(p, ATTENTION, gpu)


@pytest.mark.parametrize("gpu", [A100, L4, H200], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kv_heads", [32, 8])
@pytest.mark.parametrize("keys", [1024, 4096, 16384])
def test_a_query_over_many_keys_is_predicted_near_the_speed_of_memory(gpu, kv_heads, keys):
    p = problem(heads=32, kv_heads=kv_heads, queries=1, keys=keys, head_size=128, value_size=128)
    best = policy_of(attention_function(p), gpu).ranked[0]
    assert best.hint.template == ATTENTION
    # One thread block a head leaves SMs idle.
    assert best.hint.split_k * kv_heads > 0.8 * gpu.sms or gpu is L4
    cost = mma_attention_cost(p, best.hint)
    assert (cost is not None and cost.flight < cost.memory) or keys * kv_heads < 32768
    whole = dataclasses.replace(best.hint, split_k=1)
    slow = mma_attention_cost(p, whole)
    assert slow is None or slow.total >= cost.total


@pytest.mark.parametrize("keys", [1024, 4096])
def test_the_first_of_top_k_is_the_first_choice_beside_wgmma(keys):
    p = problem(heads=32, kv_heads=32, queries=1, keys=keys, head_size=128, value_size=128)
    policy = policy_of(attention_function(p), H200)
    for count in (1, 2, 6):
        configs = policy.emit_config(count)
        assert configs[0] == policy.ranked[0].hint and len(configs) == count
    near = [r for r in policy.ranked if r.cycles <= 1.5 * policy.ranked[0].cycles]
    assert {c.template for c in configs} == {r.hint.template for r in near}


def test_many_queries_stay_with_wgmma():
    p = problem(heads=16, kv_heads=16, queries=2048, keys=2048, head_size=128, value_size=128)
    policy = policy_of(attention_function(p), H200)
    assert policy.ranked[0].hint.template == "hopper_attention"
    assert any(one.hint.template == ATTENTION for one in policy.ranked)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float32"}, "takes float16 and bfloat16, not float32"),
        ({"head_size": 36}, "a multiple of 8, not 36"),
        ({"v_axes": "bhds"}, "whose last axis is the head size, not bhds"),
        ({"scale": 0.0}, "must be positive, not 0.0"),
    ],
)
def test_refusals(fields, reason):
    p = problem(**fields)
    found = MmaAttention().match(Workload(attention_function(p)), A100)
    assert isinstance(found, Refusal) and reason in found.reason


def test_other_functions_and_gpus_are_refused():
    func = attention_function(problem())
    family = MmaAttention()
    assert isinstance(family.match(Workload(func), GPUS["nvidia-t4"]), Refusal)
    unmarked = func.without_attr("tvmopt.attention")
    assert isinstance(family.match(Workload(unmarked), A100), Refusal)
    assert isinstance(family.emit(unmarked, PLAIN), Refusal)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"arch": GPUS["nvidia-t4"]}, "no cp.async"),
        ({"tile_keys": 40}, "a multiple of 16"),
        ({"row_tiles": 3}, "of 16 or 32 rows"),
        ({"stages": 1}, "two to eight stages"),
        ({"split_k": 4}, "split into blocks of keys"),
        ({"row_tiles": 2, "tile_keys": 128, "query_registers": True}, "exceed its registers"),
        ({"tile_keys": 128, "row_warps": 8, "stages": 8}, "shared memory"),
    ],
)
def test_configurations_that_do_not_fit(fields, reason):
    refusal = config(**fields).why_not(problem())
    assert refusal is not None and reason in refusal.reason

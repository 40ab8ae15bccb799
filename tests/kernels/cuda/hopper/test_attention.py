"""Fused attention on a GPU or emulated: every output element against NumPy; its family."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm

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
from tests.kernels.cuda.hopper.sources import H200
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.attention import MaskedBy
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.cuda.hopper.attention.attention import fused_attention
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.family import HopperAttention
from tvmopt.kernels.workload import Refusal, Workload

# Few SMs, so that a persistent kernel has several tiles a thread block.
TWO_SMS = dataclasses.replace(H200, sms=2)
FIRST, LAST = MaskedBy.FIRST_KEY, MaskedBy.LAST_KEY


def config(**fields) -> HopperAttentionConfig:
    """A configuration for a GPU of two SMs."""
    default = {"consumer_warpgroups": 1, "tile_keys": 64}
    return HopperAttentionConfig(ATTENTION, TWO_SMS, **{**default, **fields})


PLAIN, TWO = config(), config(consumer_warpgroups=2, own_output=True)
# Fields that differ from the ``problem``'s, and the configuration.
CASES = [
    ({"kv_heads": 1, "queries": 300}, config(own_output=True)),
    ({"causal": FIRST, "queries": 150}, TWO),
    ({"causal": LAST, "head_size": 32, "batch": 2}, PLAIN),
    ({"causal": LAST, "queries": 150, "keys": 70}, config(lazy_rescale=True)),
    ({"head_size": 80, "dtype": "bfloat16", "keys": 200}, config(tile_keys=112, stages=3)),
    ({"head_size": 128, "queries": 130}, dataclasses.replace(TWO, integer_max=True)),
    (
        {"head_size": 256, "keys": 130, "queries": 60, "heads": 1, "kv_heads": 1},
        config(tile_keys=80, persistent=False),
    ),
    ({"mask_shape": (1, 2, 1, 150), "mask_dtype": "bool", "q_axes": "bshd"}, PLAIN),
    ({"mask_shape": (1, 1, 100, 150), "mask_dtype": "float16", "k_axes": "bshd"}, PLAIN),
    (
        {"mask_shape": (1, 2, 100, 150), "mask_dtype": "float32", "causal": FIRST,
         "v_axes": "hsbd", "out_axes": "bshd"},
        dataclasses.replace(TWO, integer_max=True, lazy_rescale=True, pingpong=False),
    ),
    ({"mask_shape": (1, 1, 100, 150), "mask_dtype": "bfloat16", "dtype": "bfloat16"}, PLAIN),
    ({"queries": 400, "causal": FIRST, "keys": 129}, config(integer_max=True, tile_keys=48)),
    ({"queries": 1, "keys": 1000, "kv_heads": 1}, config(tile_keys=128, lazy_rescale=True)),
    ({"head_size": 40, "value_size": 72}, config(own_output=True)),
    ({"queries": 200, "head_size": 96}, config(consumer_warpgroups=3, tile_keys=80)),
    ({"queries": 300, "batch": 2}, config(query_stages=2)),
    (
        {"causal": FIRST, "queries": 400, "keys": 400, "batch": 2},
        config(consumer_warpgroups=2, query_stages=2, head_group=3, lazy_rescale=True),
    ),
    (
        {"causal": LAST, "head_size": 128, "queries": 200, "keys": 330},
        config(consumer_warpgroups=2, query_stages=2, own_output=True, pingpong=False),
    ),
    ({"mask_shape": (1, 2, 1, 150), "mask_dtype": "bool"}, config(query_stages=2)),
    ({"head_size": 40, "value_size": 72, "batch": 2}, config(query_stages=2, own_output=True)),
    (
        {"head_size": 256, "keys": 130, "queries": 60, "heads": 2, "kv_heads": 1, "batch": 2},
        config(tile_keys=32, query_stages=2),
    ),
]  # fmt: skip


def _outputs(p, c, inputs, device, orders=("chance",)):
    func = fused_attention(p, c)
    assert not isinstance(func, Refusal), func.reason
    shape, dtype = p.shapes()[-1]
    empty = np.full(shape, np.nan, numpy_dtype(dtype))
    if device is None:
        return [run(func, inputs, [empty], TWO_SMS, order=order)[0] for order in orders]
    built = tvm.compile(tvm.IRModule({"main": func}), target=H200.to_tvm(), tir_pipeline="tirx")
    out = tvm.runtime.tensor(empty, device)
    built["main"](*(tvm.runtime.tensor(x, device) for x in inputs), out)
    return [out.numpy()]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("fields", "config"), CASES)
def test_attention(fields, config, device):
    p = problem(**fields)
    inputs = operands(p)
    [got] = _outputs(p, config, inputs, device)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("fields", "config"),
    zip(HEAD_RANGES, [config(query_stages=2, own_output=True), TWO, PLAIN], strict=True),
)
def test_operands_that_are_ranges_of_heads(fields, config, device):
    p = problem(**fields)
    inputs = operands(p)
    [got] = _outputs(p, config, inputs, device)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "memory",
    [{}, {"own_output": True}, {"query_stages": 2}, {"query_stages": 2, "own_output": True}],
)
def test_results_do_not_depend_on_when_copies_complete(memory):
    p = problem(causal=FIRST, queries=200, keys=200)
    inputs = operands(p)
    c = config(consumer_warpgroups=2, **memory)
    first, *others = _outputs(p, c, inputs, None, ORDERS)
    check(p, first, attention(p, inputs))
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.slow  # test_attention has scores
@pytest.mark.sample(1)
@pytest.mark.parametrize("lazy", [False, True])
def test_maxima_that_grow_and_negative_scores(lazy, device):
    p = problem(scale=1.0)
    inputs = operands(p)
    inputs[0] = np.abs(inputs[0])
    # Scores grow with the distance from the last key, and the last keys' are negative.
    inputs[1] = (np.abs(inputs[1]) * np.linspace(0.6, -0.6, 150)[:, None]).astype("float16")
    c = config(integer_max=True, lazy_rescale=lazy)
    [got] = _outputs(p, c, inputs, device)
    check(p, got, attention(p, inputs))


@pytest.mark.sample(1)
@pytest.mark.parametrize("mask_dtype", ["bool", "float32"])
def test_masked_rows(mask_dtype, device):
    p = problem(mask_shape=(1, 1, 100, 150), mask_dtype=mask_dtype)
    inputs, want = with_masked_row(p, mask_dtype)
    [got] = _outputs(p, PLAIN, inputs, device)
    check(p, got, want)


def test_the_family_is_the_first_choice():
    p = problem(heads=16, kv_heads=4, queries=512, keys=512)
    assert_first_choice(p, ATTENTION, H200)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float32"}, "takes float16 and bfloat16, not float32"),
        ({"head_size": 36}, "a multiple of 8, not 36"),
        ({"head_size": 264}, "32 to 256 elements"),
        ({"k_axes": "bhds"}, "whose last axis is the head size, not bhds"),
        ({"scale": -1.0}, "must be positive, not -1.0"),
        ({"mask_shape": (1, 1, 1, 150), "mask_dtype": "int8"}, "a mask of int8"),
    ],
)
def test_refusals(fields, reason):
    p = problem(**fields)
    found = HopperAttention().match(Workload(attention_function(p)), H200)
    assert isinstance(found, Refusal) and reason in found.reason


def test_other_functions_and_gpus_are_refused():
    func = attention_function(problem())
    family = HopperAttention()
    assert isinstance(family.match(Workload(func), GPUS["nvidia-a100"]), Refusal)
    unmarked = func.without_attr("tvmopt.attention")
    assert isinstance(family.match(Workload(unmarked), H200), Refusal)
    assert isinstance(family.emit(unmarked, PLAIN), Refusal)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tile_keys": 40}, "a multiple of 16"),
        ({"stages": 1}, "at least two stages"),
        ({"consumer_warpgroups": 4}, "one to three"),
        ({"consumer_warpgroups": 3, "tile_keys": 160}, "exceed its registers"),
        ({"consumer_warpgroups": 2, "tile_keys": 128, "stages": 9}, "shared memory"),
        ({"query_stages": 3}, "one or two stages"),
        ({"query_stages": 2, "persistent": False}, "two stages of Q"),
        ({"head_group": -1}, "a group of heads"),
    ],
)
def test_configurations_that_do_not_fit(fields, reason):
    refusal = config(**fields).why_not(problem())
    assert refusal is not None and reason in refusal.reason

"""Convolutions with few output channels: against the unscheduled function, and their ranking."""

from __future__ import annotations

import pytest
from tvm import relax, te, tirx

from tests.kernels.cuda.functions import lowered
from tests.kernels.cuda.serial import H200, assert_same, cuda_source, hint
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.few_filters.form import few_filters_form
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.workload import Refusal

op, nn = relax.op, relax.op.nn
FAMILY = "gpu_few_filters"
H, F = "float16", "float32"
HINTS = [
    hint(FAMILY, threads=threads, pixels=pixels)
    for threads, pixels in ((128, 1), (64, 2), (256, 4))
]


def conv(x, w, **fields) -> relax.Expr:
    """Return a convolution in NHWC."""
    return nn.conv2d(x, w, data_layout="NHWC", **{"kernel_layout": "HWIO", **fields})


FUNCTIONS = {
    "padded": lambda: lowered(
        lambda x, w: conv(x, w, padding=1), ((2, 9, 12, 16), H), ((3, 3, 16, 3), H)
    ),
    "strided": lambda: lowered(
        lambda x, w: conv(x, w, padding=1, strides=2), ((2, 15, 16, 32), H), ((3, 3, 32, 3), H)
    ),
    "one filter, float32, bias and sigmoid": lambda: lowered(
        lambda x, w, b: op.sigmoid(op.add(conv(x, w, padding=2), b)),
        ((1, 8, 8, 12), F), ((5, 5, 12, 1), F), ((1,), F),
    ),
    "OHWI, dilated": lambda: lowered(
        lambda x, w: conv(x, w, padding=2, dilation=2, kernel_layout="OHWI"),
        ((1, 7, 8, 24), H), ((5, 3, 3, 24), H),
    ),
    "not padded, eight filters": lambda: lowered(
        lambda x, w, r: nn.relu(op.add(conv(x, w), r)),
        ((2, 6, 10, 8), H), ((3, 3, 8, 8), H), ((2, 4, 8, 8), H),
    ),
    "1 x 1": lambda: lowered(
        lambda x, w: conv(x, w, strides=2), ((2, 8, 8, 16), H), ((1, 1, 16, 2), H)
    ),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_stays(name: str) -> None:
    assert_same(FUNCTIONS[name](), *HINTS)


def test_pixels_and_weights_are_loaded_by_vectors() -> None:
    func = FUNCTIONS["strided"]()
    code = cuda_source(finish(emit(func, HINTS[1]).mod["main"], func))
    assert code.count("= *(uint4*)(x0_ptr") == 5  # columns of two pixels
    assert code.count("*(uint4*)(x1_shared_ptr") == 9  # three taps x 8 channels x 3 filters


@pytest.mark.parametrize(
    ("shapes", "fields", "reason"),
    [
        (((1, 8, 8, 16), (3, 3, 16, 9)), {}, "more than 8 output channels"),
        (((1, 8, 8, 12), (3, 3, 12, 3)), {}, "whole vectors of 16 bytes"),
        (((1, 8, 8, 16), (3, 3, 8, 4)), {"groups": 2}, "share"),
    ],
)
def test_refusals(shapes, fields, reason: str) -> None:
    func = lowered(lambda x, w: conv(x, w, padding=1, **fields), *((s, H) for s in shapes))
    refused = few_filters_form(func)
    assert isinstance(refused, Refusal) and reason in refused.reason


def test_rows_that_do_not_divide_are_refused() -> None:
    func = lowered(lambda x, w: conv(x, w), ((1, 5, 9, 8), H), ((3, 3, 8, 3), H))
    with pytest.raises(NotApplicable, match="rows of 7 pixels are no multiple of 2"):
        emit(func, HINTS[1])


def _strided(filters: int, dtype: str):
    shape = (16, 224, 224, 32)
    return lowered(
        lambda x, w: conv(x, w, padding=1, strides=2), (shape, dtype), ((3, 3, 32, filters), dtype)
    )


@pytest.mark.parametrize(("gpu", "dtype"), [("v100", H), ("t4", H), ("a100", F)])
def test_it_is_ranked_first_where_tensor_cores_have_no_tile_for_it(gpu: str, dtype: str) -> None:
    assert policy_of(_strided(3, dtype), GPUS[f"nvidia-{gpu}"]).ranked[0].hint.template == FAMILY


def test_it_is_tried_where_mma_sync_is_predicted_as_fast() -> None:
    """On an A100 a tile of 16 columns is predicted 7% faster; measurement decides."""
    policy = policy_of(_strided(3, H), GPUS["nvidia-a100"])
    best = {}
    for one in policy.ranked:
        best.setdefault(one.hint.template, one.cycles)
    assert set(list(best)[:2]) == {FAMILY, "mma_matmul"}
    assert 2 / 3 < best[FAMILY] / best["mma_matmul"] < 3 / 2
    assert 2 * best[FAMILY] < min(best[name] for name in best.keys() - {FAMILY, "mma_matmul"})
    assert {FAMILY, "mma_matmul"} <= {hint.template for hint in policy.emit_config(20)}


def test_many_filters_are_of_tensor_cores() -> None:
    policy = policy_of(_strided(64, H), GPUS["nvidia-a100"])
    assert policy.ranked[0].hint.template == "mma_matmul" and FAMILY in policy.ranking.refusals


def test_wgmma_has_a_tile_of_eight_columns() -> None:
    hopper = policy_of(_strided(3, H), H200).ranked
    assert (hopper[0].hint.template, hopper[0].hint.tile_n) == ("hopper_conv", 8)


def test_a_symbolic_shape_is_refused() -> None:
    rows = tirx.Var("n", "int64")
    a = te.placeholder((rows, 8, 8, 16), "float16", "A")
    func = te.create_prim_func([a, te.compute(a.shape, lambda *at: a[at] + a[at], "B")])
    refused = policy_of(func, H200).ranking.refusals[FAMILY]
    assert "symbolic shape" in refused.reason

"""Predicted cycles of functions whose epilogue broadcasts the output of the reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from tvm import relax, tirx

from tests.kernels.ranking.functions import ARCH, function
from tvmopt.kernels.analysis import leaf_blocks
from tvmopt.kernels.cpu.common.cost import LAUNCH
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import family_of, policy_of
from tvmopt.kernels.ranked import Ranked

op, nn = relax.op, relax.op.nn

CHANNELS = 88
_ONE = 1, 1, 1, CHANNELS
# At most 16 * 1024 elements are computed by one core.
SMALL, LARGE = (1, 3, 32, CHANNELS), (1, 3, 96, CHANNELS)


def _hard_sigmoid(x: relax.Expr) -> relax.Expr:
    shifted = op.add(op.multiply(x, relax.const(0.2)), relax.const(0.5))
    return op.clip(shifted, 0.0, 1.0)


def _squeeze_and_excite(image: tuple[int, ...]) -> tirx.PrimFunc:
    """A 1 x 1 convolution of pooled channels scales a feature map."""

    def build(x: relax.Expr, features: relax.Expr, w: relax.Expr) -> relax.Expr:
        scale = nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")
        return op.multiply(features, _hard_sigmoid(scale))

    return function(build, (1, 1, 1, 22), image, (1, 1, 22, CHANNELS))


def _gemv(image: tuple[int, ...]) -> tirx.PrimFunc:
    """The output of a matmul of one row is added to all rows of a matrix."""
    rows = image[1] * image[2]
    return function(
        lambda x, y, w: op.add(y, op.matmul(x, w)), (1, 22), (rows, CHANNELS), (22, CHANNELS)
    )


def _scaled_by_pool(image: tuple[int, ...]) -> tirx.PrimFunc:
    """A pooled image scales another one; the family of windows computes the pooling."""
    return function(
        lambda x, y: op.multiply(y, nn.max_pool2d(x, (3, 3), layout="NHWC")),
        (1, 3, 3, CHANNELS),
        image,
    )


BROADCASTS = _squeeze_and_excite, _gemv, _scaled_by_pool


def _alone(func: tirx.PrimFunc) -> list[Ranked]:
    """The candidates of the families' cost models, in the order of their predicted cycles."""
    policy = policy_of(func, ARCH)
    found = [r for f in policy.ranking.found if f.family.has_cost_model for r in f.ranked]
    return sorted(found, key=lambda one: one.cycles)


def _modelled(func: tirx.PrimFunc) -> list[Ranked]:
    return [r for r in policy_of(func, ARCH).ranked if family_of(r.hint).has_cost_model]


@pytest.mark.parametrize("build", BROADCASTS)
def test_a_broadcasting_epilogue_costs_at_least_the_same_function_without_the_reduction(
    build: Callable[[tuple[int, ...]], tirx.PrimFunc],
) -> None:
    scale = function(op.multiply, LARGE, _ONE)
    least = policy_of(scale, ARCH).cycles
    assert least > LAUNCH
    ranked = _modelled(build(LARGE))
    assert ranked
    assert all(one.cycles >= least for one in ranked)


@pytest.mark.parametrize("build", BROADCASTS)
@pytest.mark.parametrize("image", [SMALL, LARGE])
def test_a_broadcasting_epilogue_adds_the_same_cycles_to_all_candidates(build, image) -> None:
    func = build(image)
    alone, ranked = _alone(func), _modelled(func)
    assert [one.hint for one in ranked] == [one.hint for one in alone]
    added = {round(r.cycles - a.cycles, 3) for r, a in zip(ranked, alone, strict=True)}
    assert len(added) == 1 and min(added) > 0


@pytest.mark.parametrize("build", BROADCASTS)
@pytest.mark.parametrize("image", [SMALL, LARGE])
def test_a_broadcasting_epilogue_is_parallel_as_it_is_scheduled(build, image) -> None:
    func = build(image)
    added = _modelled(func)[0].cycles - _alone(func)[0].cycles
    scheduled = schedule_function(func, ARCH)
    assert scheduled is not None
    [nest] = [
        block
        for block in leaf_blocks(scheduled.schedule)
        if scheduled.schedule.get(block).writes[0].source.same_as(scheduled.func.params[-1])
    ]
    loop = scheduled.schedule.get(scheduled.schedule.get_loops(nest)[0])
    assert (added > LAUNCH) == (loop.kind == tirx.ForKind.PARALLEL)
    one = policy_of(func, dataclasses.replace(ARCH, cores=1)).ranked[0].cycles
    assert one < LAUNCH


def _convolution(finish: Callable[..., relax.Expr], *more: tuple[int, ...]) -> tirx.PrimFunc:
    def build(x: relax.Expr, *others: relax.Expr) -> relax.Expr:
        *residual, w = others
        y = nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO")
        return finish(y, *residual)

    return function(build, (1, 14, 14, 16), *more, (3, 3, 16, 64))


@pytest.mark.parametrize(
    "func",
    [
        _convolution(lambda y: y),
        _convolution(nn.relu),
        _convolution(lambda y, z: nn.relu(op.add(y, z)), (1, 14, 14, 64)),
        _convolution(lambda y, bias: op.add(y, bias), (1, 1, 1, 64)),
        function(lambda x, w: op.sigmoid(op.matmul(x, w)), (64, 48), (48, 96)),
    ],
    ids=["conv", "relu", "residual", "bias", "matmul"],
)
def test_an_epilogue_of_the_size_of_the_output_adds_no_cycles(func: tirx.PrimFunc) -> None:
    ranked = _modelled(func)
    assert ranked
    assert ranked == _alone(func)

"""Block reductions over any axes are correct for all thread counts and split-K factors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax, tirx

from tests.kernels.cuda.functions import lowered, sums
from tests.kernels.cuda.serial import H200, assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.policies import policy_of

op, nn = relax.op, relax.op.nn
F, H = "float32", "float16"
WAYS = [
    hint(
        "gpu_block_reduction",
        threads=place,
        reduce_threads=share,
        split_k=parts,
        unroll=unroll,
    )
    for place, share, parts, unroll in ((1, 64, 1, 4), (4, 32, 1, 1), (8, 32, 4, 1), (1, 96, 5, 1))
]
CASES: dict[str, Callable[[], tirx.PrimFunc]] = {
    "means of channels": lambda: lowered(lambda x: op.mean(x, [0, 2, 3]), ((2, 3, 31, 32), F)),
    "axes apart": lambda: lowered(lambda x: op.max(x, [0, 2, 4]), ((8, 3, 8, 5, 8), F)),
    "a whole tensor": lambda: lowered(lambda x: op.mean(x), ((1, 7, 31, 32), F)),
    "two columns": lambda: lowered(lambda x: op.sum(x, 0), ((3001, 2), F)),
    "argmax of columns": lambda: lowered(lambda x: op.argmax(x, 0), ((3001, 2), F)),
    "argmax of all": lambda: lowered(lambda x: op.argmax(x), ((7, 31, 32), F)),
}
SEVERAL: dict[str, Callable[[], tirx.PrimFunc]] = {
    "softmax of columns": lambda: lowered(lambda x: nn.softmax(x, 0), ((997, 31), F)),
    "softmax of a column": lambda: lowered(lambda x: nn.softmax(x, 1), ((1, 997, 3), F)),
    "variance of columns": lambda: lowered(lambda x: op.variance(x, 0), ((1000, 97), F)),
    "norm of columns": lambda: lowered(
        lambda x, g, b: nn.layer_norm(x, g, b, [0]), ((997, 5), F), ((997,), F), ((997,), F)
    ),
    "norm of channels": lambda: lowered(
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]), ((1, 3, 997, 1), F), *[((3,), F)] * 2
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_one_sum(name: str) -> None:
    assert_same(CASES[name](), *WAYS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SEVERAL)
def test_several_sums(name: str) -> None:
    assert_same(SEVERAL[name](), *WAYS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [*CASES, *SEVERAL])
def test_few_long_sums_are_not_left_to_a_few_threads(name: str) -> None:
    func = (CASES | SEVERAL)[name]()
    best = policy_of(func, H200).ranked[0].hint
    assert best.reduce_threads >= 32
    assert_same(func, best)


def test_parts_are_sums_of_something() -> None:
    with pytest.raises(NotApplicable, match="fewer elements than threads"):
        emit(lowered(lambda x: op.sum(x, 0), ((97, 31), F)), WAYS[3])
    with pytest.raises(NotApplicable, match="it has no reduction"):
        emit(lowered(nn.relu, ((97, 31), F)), WAYS[0])


def test_neighbours_read_neighbours() -> None:
    """threadIdx.x runs along contiguous memory: the reduction's axis, or the columns."""
    apart, along = ((lambda x: op.sum(x, 0)), (lambda x: op.sum(x, [0, 2])))
    for make, shape, of_sum in ((apart, (1000, 97), "y"), (along, (4, 3, 1000), "x")):
        func = lowered(make, (shape, F))
        one = hint("gpu_block_reduction", threads=8, reduce_threads=64)
        scheduled = emit(func, one)
        code = cuda_source(finish(scheduled.mod["main"], func))
        assert f"(((int)threadIdx.{of_sum}) == 0)" in code


def test_what_other_templates_take_stays_theirs() -> None:
    for func, template in (
        (sums(1, ((4096, 1024), H)), "gpu_row_reduction"),
        (sums(0, ((4096, 1024), H)), "gpu_column_reduction"),
        (lowered(lambda x: nn.softmax(x, 1), ((1, 21, 64, 64), F)), "gpu_column_walk"),
        (lowered(lambda x: nn.softmax(x, -1), ((1, 50257), F)), "gpu_row_reduction"),
    ):
        assert policy_of(func, H200).ranked[0].hint.template == template

"""Static memory planning: no two buffers that are live at once overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tvmopt.codegen.memory_plan import plan_memory
from tvmopt.codegen.network import Branch, Buffer, KernelCall, StaticNetwork
from tvmopt.runtime.native import ALIGNMENT_BYTES

_CALLS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=12)


def _network(calls, sizes, nested=()) -> StaticNetwork:
    steps = [KernelCall("f", tuple(Buffer(b) for b in call)) for call in calls]
    if nested:
        then, otherwise = (tuple(KernelCall("g", (Buffer(b),)) for b in side) for side in nested)
        steps.insert(len(steps) // 2, Branch(Buffer(0), then, otherwise))
    return StaticNetwork((), (), (), tuple(sizes), tuple(steps))


@given(_CALLS, st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_buffers_that_are_live_at_once_do_not_overlap(calls, sizes) -> None:
    plan = plan_memory(_network(calls, sizes), ())
    used = {b for call in calls for b in call}
    assert {buffer.number for buffer in plan.offsets} == used
    live = {
        b: range(
            min(i for i, call in enumerate(calls) if b in call),
            max(i for i, call in enumerate(calls) if b in call) + 1,
        )
        for b in used
    }
    for a in used:
        start = plan.offsets[Buffer(a)]
        assert start % ALIGNMENT_BYTES == 0
        assert start + sizes[a] <= plan.size
        for b in used - {a}:
            other = plan.offsets[Buffer(b)]
            apart = start + sizes[a] <= other or other + sizes[b] <= start
            assert apart or not set(live[a]) & set(live[b])


def test_buffers_of_different_times_share_their_place() -> None:
    chain = [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert plan_memory(_network(chain, [640] * 5), ()).size == 2 * 640


def test_buffers_outside_have_no_place() -> None:
    plan = plan_memory(_network([[0, 1]], [64, 64]), (Buffer(1),))
    assert plan.offsets == {Buffer(0): 0}
    assert plan.size == 64


def test_buffers_live_through_a_branch() -> None:
    network = _network([[0, 1], [1, 2]], [64] * 4, nested=([3], [3, 2]))
    plan = plan_memory(network, ())
    assert plan.offsets[Buffer(1)] not in (plan.offsets[Buffer(3)], plan.offsets[Buffer(2)])

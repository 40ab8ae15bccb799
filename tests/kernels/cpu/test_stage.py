"""Tests of vector lengths, and of the access facts that schedules are chosen from."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from tvm import IRModule, relax, s_tir, tirx

from tests.kernels.cpu.harness import ARCH, NARROW, default_config, lower, prim_funcs
from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.stage import contiguous_tail, inline_injective, vector_length
from tvmopt.kernels.cpu.contraction.schedule import choose_tile
from tvmopt.kernels.emit import emit
from tvmopt.kernels.schedulable import why_not_schedulable

op, nn = relax.op, relax.op.nn


def _facts(build, *shapes: tuple[int, ...]) -> list[BlockFacts]:
    mod = lower(build, [(shape, "float32") for shape in shapes])
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    assert why_not_schedulable(func) is None
    sch = s_tir.Schedule(IRModule({"main": func}))
    return [block_facts(sch, block) for block in leaf_blocks(sch)]


@pytest.mark.parametrize(
    ("extent", "registers", "length"),
    [(3136, 4, 64), (3136, 1, 16), (49, 4, 49), (49, 1, 7), (14, 4, 14), (1009, 4, 1), (1, 4, 1)],
)
def test_vector_length(extent: int, registers: int, length: int) -> None:
    assert vector_length(extent, 16, registers) == length


@hypothesis.given(st.integers(1, 5000), st.sampled_from([1, 4, 8, 16, 64]), st.integers(1, 4))
def test_vector_length_divides_and_is_bounded(extent: int, lanes: int, registers: int) -> None:
    length = vector_length(extent, lanes, registers)
    assert extent % length == 0
    assert 1 <= length <= max(1, registers * lanes)


def test_strides_of_a_matmul() -> None:
    (facts,) = _facts(op.matmul, (6, 10), (10, 8))
    assert [(a.extent, a.reduce) for a in facts.axes] == [(6, False), (8, False), (10, True)]
    assert [r.strides for r in facts.reads] == [(10, 0, 1), (0, 1, 8)]
    assert facts.write.strides == (8, 1, 0)
    assert (facts.work, facts.reduced) == (480, 10)


def test_a_reshape_that_changes_nothing_has_plain_strides() -> None:
    (facts,) = _facts(lambda x: op.reshape(x, (3, 5, 8)), (15, 8))
    assert facts.reads[0].strides == facts.write.strides == (40, 8, 1)


def test_padding_makes_its_axes_conditional() -> None:
    facts = _facts(lambda x: nn.pad(x, [0, 0, 0, 0, 1, 1, 0, 0]), (1, 3, 5, 8))[0]
    assert facts.conditional == (False, False, True, False)


def test_contiguous_tail_of_a_channel_bias() -> None:
    (facts,) = _facts(op.add, (1, 6, 5, 7), (1, 6, 1, 1))
    tail = contiguous_tail(facts, range(4))
    assert tail is not None
    assert (tail.axes, tail.inner, tail.extent) == ((2, 3), 3, 35)


def test_contiguous_tail_spans_unit_axes() -> None:
    (facts,) = _facts(nn.relu, (4, 6, 1, 1))
    tail = contiguous_tail(facts, range(4))
    assert tail is not None
    assert (tail.axes, tail.inner, tail.extent) == ((0, 1, 2, 3), 1, 24)


@pytest.mark.parametrize("arch", [ARCH, NARROW])
@pytest.mark.parametrize("shape", [(128, 384, 384), (7, 50, 13), (1, 1000, 512), (97, 1, 5)])
def test_tile_fits_the_registers(shape, arch) -> None:
    rows, columns, depth = shape
    (facts,) = _facts(op.matmul, (rows, depth), (depth, columns))
    tile = choose_tile(facts, arch)
    if tile is None:
        return
    assert tile.rows * tile.columns <= arch.vector_registers * 3 // 4
    assert tile.length <= arch.lanes("float32")
    assert columns % (tile.columns * tile.length) == 0 or tile.vector == 0


@pytest.mark.parametrize("names", [["silu"] * 4, ["tanh", "relu", "silu", "silu"]])
def test_functions_that_use_their_argument_often_are_not_nested_deep(names: list[str]) -> None:
    """LLVM took minutes for three of them in one expression."""

    def chain(x):
        for name in names:
            x = {"silu": nn.silu, "relu": nn.relu, "tanh": op.tanh}[name](x)
        return x

    mod = lower(chain, [((8, 16), "float32")])
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    sch = s_tir.Schedule(IRModule({"main": func}))
    before = len(leaf_blocks(sch))
    inline_injective(sch)
    after = [block_facts(sch, block).math_depth for block in leaf_blocks(sch)]
    assert max(after) == 2
    assert len(after) <= before / 2


@pytest.mark.parametrize(("channels", "length"), [(144, 16), (240, 16), (128, 128), (7, 7)])
def test_padding_is_copied_in_vectors_of_a_power_of_two(channels: int, length: int) -> None:
    """LLVM passes other vectors between basic blocks element by element."""
    mod = lower(
        lambda x: relax.op.nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0]), [((1, 40, 40, channels), "uint8")]
    )
    [func] = prim_funcs(mod).values()
    schedule = emit(func, default_config("elementwise", ARCH))
    assert f"T.vectorized(T.int64({length}))" in schedule.mod["main"].script()


@pytest.mark.parametrize(
    ("dtype", "channels", "length"),
    [("float32", 88, 44), ("bfloat16", 88, 8), ("bfloat16", 48, 48), ("bfloat16", 44, 44)],
)
def test_16_bit_floats_are_converted_by_whole_registers(dtype, channels, length) -> None:
    """44 of 88 channels in one vector take 1.5 times as long as 8, where they are bfloat16."""
    shapes = (1, 6, 96, channels), (1, 1, 1, channels)
    mod = lower(relax.op.multiply, [(shape, dtype) for shape in shapes])
    [func] = prim_funcs(mod).values()
    schedule = emit(func, default_config("elementwise", ARCH))
    assert f"T.vectorized(T.int64({length}))" in schedule.mod["main"].script()

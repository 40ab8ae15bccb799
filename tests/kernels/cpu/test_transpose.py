"""Tiled transposes: chosen tiles, ragged extents, right results."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from tvm import relax, tirx

from tests.kernels.cpu.harness import ARCH, NARROW, apply_template, check, lower, prim_funcs
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.passes.transpose import TransposeTile, choose_tile
from tvmopt.kernels.emit import emit

op, nn = relax.op, relax.op.nn


@pytest.mark.parametrize(
    ("along", "across", "most", "cut", "tile"),
    [
        (3136, 64, 16, True, (16, 8)),
        (3136, 64, 8, True, (8, 8)),
        (49, 512, 16, True, (16, 8)),  # 48 and 1
        (49, 512, 16, False, (7, 8)),
        (512, 49, 16, True, (16, 7)),
        (3136, 13, 16, True, (8, 13)),  # limited by the compile time of LLVM
        (197, 64, 16, False, None),
        (64, 197, 16, True, (16, 8)),  # 192 and 5
        (64, 197, 16, False, None),
        (3136, 19, 16, True, (4, 19)),  # one tile: a rest would touch all cache lines again
        (5, 64, 16, True, (5, 8)),  # an axis shorter than a vector is not tiled
        (3, 50176, 16, True, None),  # LLVM emits shuffles
        (50176, 3, 16, True, None),
    ],
)
def test_tile(along, across, most, cut, tile) -> None:
    assert choose_tile(along, across, most, cut) == (tile and TransposeTile(*tile))


@hypothesis.given(
    st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([8, 16]), st.booleans()
)
def test_a_tile_divides_unless_cuts_are_allowed(along, across, most, cut) -> None:
    tile = choose_tile(along, across, most, cut)
    if tile is None:
        return
    assert 1 <= tile.lanes <= along
    assert 1 <= tile.rows <= across
    assert tile.lanes * tile.rows <= 32 * 32
    if not cut:
        assert along % tile.lanes == 0
        assert across % tile.rows == 0


def _only(build, *operands) -> tirx.PrimFunc:
    (func,) = prim_funcs(lower(build, list(operands))).values()
    return func


def _f32(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


def _text(build, *operands, arch=ARCH) -> str:
    func = _only(build, *operands)
    return emit(func, UnmodelledConfig("elementwise", arch)).mod["main"].script()


def test_loads_are_vectors_and_rows_are_straight_line_code() -> None:
    text = _text(lambda x: op.permute_dims(x, [0, 2, 3, 1]), _f32(1, 64, 56, 56))
    assert "T.vectorized(T.int64(16))" in text
    assert "T.unroll(T.int64(8))" in text
    assert "T.parallel(" in text


def test_lines_that_share_a_set_of_the_cache_are_few() -> None:
    """A stride of 512 KB maps to one cache set of 8 to 12 ways, so the tile has 8 lanes, not 16."""
    text = _text(lambda x: op.permute_dims(x, [0, 3, 1, 2]), _f32(1, 64, 64, 64))
    assert "T.vectorized(T.int64(8))" in text
    assert "T.vectorized(T.int64(16))" not in text


def test_one_register_a_vector_means_the_plain_loop() -> None:
    func = _only(lambda x: op.permute_dims(x, [1, 0]), _f32(64, 64))
    hint = UnmodelledConfig("elementwise", ARCH, vector_registers=1)
    assert "vectorized" not in emit(func, hint).mod["main"].script()


_BUILDS = {
    "plain": (lambda x: op.permute_dims(x, [0, 2, 1]), []),
    "relu": (lambda x: nn.relu(op.permute_dims(x, [0, 2, 1])), []),
    "of_each_row": (lambda x, b: op.add(op.permute_dims(x, [0, 2, 1]), b), [(0, 2, 1)]),
    "of_each_column": (lambda x, b: op.add(op.permute_dims(x, [0, 2, 1]), b), [(0, 1, 2)]),
}


@hypothesis.settings(max_examples=14, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    batch=st.sampled_from([1, 2, 5]),
    along=st.integers(4, 70),
    across=st.integers(7, 70),
    name=st.sampled_from(sorted(_BUILDS)),
    dtype=st.sampled_from(["float32", "float32", "int8", "int64", "float16"]),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay_for_any_extents(batch, along, across, name, dtype, arch) -> None:
    if name == "relu" and dtype.startswith("int"):
        dtype = "float32"
    build, kinds = _BUILDS[name]
    operands = [((batch, across, along), dtype)]
    if kinds:
        shape = (1, 1, across) if kinds[0] == (0, 1, 2) else (1, along, 1)
        operands.append((shape, dtype))
    check(build, operands, arch, template="elementwise")
    func = _only(build, *operands)
    assert_replays(emit(func, UnmodelledConfig("elementwise", arch)), func)


@pytest.mark.parametrize("shape", [(1, 197, 64), (1, 64, 197), (3, 67, 83)])
def test_ragged_extents_are_cut(shape) -> None:
    build, operands = (lambda x: op.permute_dims(x, [0, 2, 1])), [_f32(*shape)]
    check(build, operands, template="elementwise")
    mod = apply_template(lower(build, operands), "elementwise")
    (func,) = prim_funcs(mod).values()
    assert func.script().count("_partition") >= 2


def test_an_operand_in_the_layout_of_the_result_keeps_the_plain_loop() -> None:
    build = lambda x, y: op.add(op.permute_dims(x, [1, 0]), y)  # noqa: E731
    assert "vectorized" not in _text(build, _f32(64, 48), _f32(48, 64))
    check(build, [_f32(64, 48), _f32(48, 64)], template="elementwise")


def test_a_column_that_is_broadcast_along_rows_is_no_transpose() -> None:
    text = _text(lambda b: nn.relu(op.broadcast_to(b, (64, 96))), _f32(64, 1))
    assert "T.vectorized(T.int64(48))" in text
    assert "T.unroll(" not in text

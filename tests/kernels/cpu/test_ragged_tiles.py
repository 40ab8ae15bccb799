"""Ragged tiles: the loop is split, so that only the last tile has a bounds check."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tests.kernels.cpu import harness
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.register_blocks import row_counts
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy

# A CPU by name, so that the tests do not depend on the machine.
SPEC = resolve_target("skylake-avx512", 2)
ARCH = SPEC.arch()
_PASSES = [
    s_tir.transform.LowerInitBlock(),
    s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
    s_tir.transform.ConvertBlocksToOpaque(),
    s_tir.transform.CompactBufferAllocation(),
    s_tir.transform.StmtSimplify(),
    s_tir.transform.LowerOpaqueBlock(),
    tirx.transform.FlattenBuffer(),
    s_tir.transform.LoopPartition(),
    tirx.transform.VectorizeLoop(True),
    tirx.transform.UnrollLoop(),
    tirx.transform.StmtSimplify(),
]


def matmul(rows: int, depth: int, columns: int) -> tirx.PrimFunc:
    """A matmul with a constant weight."""
    return harness.matmul(rows, depth, columns, SPEC.to_tvm())


def _branches(func: tirx.PrimFunc) -> int:
    lowered = tvm.transform.Sequential(_PASSES)(
        tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    )
    found: list[tirx.IfThenElse] = []
    tvm_ffi.structural_walk(lowered["main"].body, (tirx.IfThenElse, found.append), order="post")
    return len(found)


def _register_tiles(func: tirx.PrimFunc) -> set[tuple[int, ...]]:
    hints = DefaultPolicy(func, ARCH).emit_config(10**6)
    return {hint.register_tile for hint in hints if isinstance(hint, RegisterTileConfig)}


def _tile(rows: int, width: int, **how) -> RegisterTileConfig:
    known = {"loop_order": (1, 0), "parallel_loops": 1, "packing": "prepacked"} | how
    return RegisterTileConfig("register_tile", ARCH, register_tile=(rows, width), **known)


@pytest.mark.parametrize(
    "hint",
    [
        _tile(6, 64),
        _tile(14, 32),
        _tile(6, 64, k_block=16, loops_in_k_block=1),
        _tile(6, 64, loop_order=(0, 1)),
    ],
    ids=str,
)
def test_no_row_has_a_branch(hint: RegisterTileConfig) -> None:
    func = matmul(100, 64, 128)
    assert 100 % hint.register_tile[0]
    assert _branches(finish(emit(func, hint).mod["main"], func)) == 0


def test_rows_have_branches_where_a_ragged_loop_is_one_with_others() -> None:
    """A fused loop over rows and columns cannot be split, so its branches stay."""
    func = matmul(100, 64, 128)
    fused = finish(emit(func, _tile(6, 64, parallel_loops=2)).mod["main"], func)
    assert _branches(fused) > 0


@pytest.mark.sample(7)
@pytest.mark.parametrize("rows", [1, 2, 5, 7, 13, 100, 101])
@pytest.mark.parametrize(
    "tile", [_tile(6, 64), _tile(6, 64, k_block=16, loops_in_k_block=1)], ids=str
)
def test_numbers_stay(rows: int, tile: RegisterTileConfig) -> None:
    if rows < tile.register_tile[0]:
        tile = _tile(rows, 64)
    func = matmul(rows, 64, 128)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal([int(e) for e in p.shape], np.float32) for p in func.params[:-1])
    scheduled = finish(emit(func, tile).mod["main"], func)
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    kernel = tvm.tirx.build(module, target=resolve_target("host", 2).to_tvm(), pipeline="s_tir")
    out = tvm.runtime.empty((rows, 128), "float32")
    kernel["main"](*map(tvm.runtime.tensor, (x, w)), out)
    np.testing.assert_allclose(out.numpy(), x @ w, rtol=1e-4, atol=1e-4)


def test_rests_are_small_and_sought_where_divisors_are() -> None:
    assert row_counts(1024, most=6, rest=4, near=0.8) == [2, 4, 5, 6]
    assert row_counts(1024, most=14, rest=9, near=0.8) == [8, 12, 14]  # 13 would leave 10
    assert row_counts(196, most=14, rest=9, near=0.8) == [7, 14]
    assert row_counts(1024, most=6, rest=4, near=0.5) == [2, 4]
    assert row_counts(3, most=14, rest=9, near=0.8) == [3]


def test_rows_without_divisors_are_never_taken_one_by_one() -> None:
    """31 x 31 outputs of 16 channels; a rest that is too large is better than none."""
    assert row_counts(961, most=30, rest=19, near=0.5) == [1, 24, 30]
    assert row_counts(1009, most=14, rest=0, near=0.8) == [1, 14]
    blocks = _register_tiles(matmul(961, 64, 16))
    assert (30, 16) in blocks


def test_the_space_has_them() -> None:
    blocks = _register_tiles(matmul(128, 64, 256))
    assert (6, 64) in blocks
    for rows, width in blocks:
        assert 128 % rows * -(-width // 16) <= 19

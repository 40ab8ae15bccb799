"""Cost models of GEMVs and row reductions: what makes small kernels slow."""

from __future__ import annotations

import dataclasses

from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.gemv.cost import GemvProblem, gemv_cost
from tvmopt.kernels.cuda.row_reduction.cost import RowCost
from tvmopt.kernels.cuda.row_reduction.space import _lines_of

H200 = GPUS["nvidia-h200"]


def _problem(rows: int, pieces: int, size: int = 2) -> GemvProblem:
    moved = float(rows * pieces * size)
    return GemvProblem(rows, 1, pieces, 1, size, size, False, moved)


def _cycles(problem: GemvProblem, threads: int, share: int, vector: int, unroll: int = 1) -> float:
    return gemv_cost(
        problem, GemvConfig("gpu_gemv", H200, threads, 1, share, vector, unroll)
    ).cycles


def test_guarded_loads_of_16_bytes_are_slow_and_wait_for_each_other() -> None:
    ragged, even = _problem(200, 6000), _problem(200, 6144)
    assert _cycles(ragged, 2, 256, 4, 2) < _cycles(ragged, 2, 256, 8)
    assert _cycles(ragged, 2, 256, 4, 2) < _cycles(ragged, 2, 256, 4, 1)
    assert _cycles(even, 2, 256, 8) < _cycles(ragged, 2, 256, 8)


def test_gemv_pays_for_each_block_and_for_registers_that_do_not_fit() -> None:
    problem = _problem(2048, 768)
    assert _cycles(problem, 8, 32, 8) < _cycles(problem, 4, 32, 8) < _cycles(problem, 2, 32, 8)
    many = dataclasses.replace(problem, batch=4096)
    assert _cycles(many, 8, 32, 8) == float("inf")


def test_row_reductions_pay_for_each_block_of_an_sm() -> None:
    one = RowCost(blocks=132, threads=64, compulsory_bytes=1e5)
    cycles = [dataclasses.replace(one, blocks=132 * n).cycles(H200) for n in (1, 4, 16)]
    assert cycles == sorted(cycles) and cycles[2] - cycles[0] > 10 * H200.costs.row_block_cycles
    assert RowCost(blocks=1, threads=64, compulsory_bytes=1.0, smem_bytes=2**20).cycles(
        H200
    ) == float("inf")


def test_adjacent_short_rows_share_lines() -> None:
    assert _lines_of(16, 4, 20, 128) < 4.0
    assert _lines_of(4, 128, 1024, 128) == 4.0

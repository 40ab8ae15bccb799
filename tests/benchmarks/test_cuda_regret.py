"""The CUDA cost models on a recorded sweep: rankings of all families together, on two GPUs."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from benchmarks import cuda_fit, cuda_regret
from benchmarks.interleave import geometric_mean
from tvmopt.device.cuda import CudaArch
from tvmopt.device.gpus import GPUS

SWEEP = Path("benchmarks/results/2026-11-28-cuda-sweep.jsonl")
# GEMMs and convolutions, most of random shapes, measured after the constants were fitted to SWEEP.
SECOND_SWEEP = Path("benchmarks/results/2026-11-28-cuda-sweep-2.jsonl")
# GEMVs, row reductions and float32 GEMMs of few rows, most of them of random sizes.
FEW_ROWS = Path("benchmarks/results/2026-11-28-cuda-sweep-3.jsonl")
# Rows whose regret is more than 1.08.
MOST = {
    "softmax-128-10-float16": 1.17,
    "matmul_tn-2000-300-3000-float16": 1.16,
    "matmul_tn-640-2816-2048-float16": 1.11,
    "matmul_nt-200-1000-32-float16": 1.10,
}
H100, H200 = GPUS["nvidia-h100"], GPUS["nvidia-h200"]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return SWEEP.read_text().splitlines()


@functools.cache
def _regret_of(line: str, arch: CudaArch) -> cuda_regret.RowRegret:
    """Return the regret of a row; ranking its configurations takes a CPU second."""
    [found] = cuda_regret.regrets_of([line], arch)
    return found


# The rankings of the two GPUs differ by the bandwidth of DRAM. Rows whose regret was more, below,
# are tested on both.
@pytest.mark.parametrize(
    ("arch", "step"),
    [
        (H200, 4),
        pytest.param(H200, 1, marks=pytest.mark.slow),
        pytest.param(H100, 1, marks=pytest.mark.slow),
    ],
    ids=lambda of: of.name if isinstance(of, CudaArch) else f"each {of}",
)
def test_the_first_is_near_the_fastest(lines, arch, step) -> None:
    found = [_regret_of(line, arch) for line in lines[::step]]
    assert len(found) == len(lines) // step == 84 // step
    assert geometric_mean(r.regret for r in found) < 1.018
    over = {r.name: r.regret for r in found if r.regret >= MOST.get(r.name, 1.08)}
    assert not over


@pytest.mark.slow  # the rows of SWEEP have such shapes, too
def test_gemms_and_convolutions_of_random_shapes() -> None:
    found = cuda_regret.regrets_of(SECOND_SWEEP.read_text().splitlines(), H200)
    assert len(found) == 83
    for group, most in {"matmul": 1.10, "conv": 1.12}.items():
        assert geometric_mean(r.regret for r in found if r.group == group) < most


@pytest.mark.slow  # as SWEEP above
def test_memory_bound_kernels_of_random_sizes_rank_near_the_fastest() -> None:
    found = cuda_regret.regrets_of(FEW_ROWS.read_text().splitlines(), H200)
    assert len(found) == 23
    assert geometric_mean(r.regret for r in found) < 1.04
    assert not {r.name: r.regret for r in found if r.regret >= 1.09}


@pytest.mark.sample(8)
@pytest.mark.parametrize("arch", [H100, H200], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "name",
    [
        "conv2d-32-32-112-112-16-1-1-1-1-0-float16",
        "conv2d-8-16-112-112-32-1-1-1-1-0-float16",
        "matmul_nt-100-1000-16-int8",
        "matmul_nt-64-512-32-int8",
        "matmul_nt-16-4096-4096-float32",
        "matmul_nt-32-11008-4096-float16",
        "matmul_nn-6000-128-2048-float16",
        "matmul_nn-5000-96-4096-float16",
        "matmul_nt-3000-400-2000-float16",
        "matmul_tn-768-3072-4096-float16",
        "matmul_nt-7000-300-1000-float16",
        "matmul_nt-1-1000-48-int8",
        "conv2d-2-40-17-17-20-3-3-1-1-1-bfloat16",
        "conv2d-1-64-224-224-3-7-7-2-1-3-float16",
        "conv2d-32-32-224-224-3-3-3-2-1-1-float16",
        "conv2d-16-24-160-160-3-3-3-2-1-1-float16",
        "conv2d-8-48-192-192-3-3-3-2-1-1-float16",
    ],
)
def test_rows_whose_regret_was_more(lines, arch, name) -> None:
    # Some rows were measured twice; the later line has the kernels that are ranked first now.
    line = [line for line in lines if json.loads(line)["row"] == name][-1]
    found = _regret_of(line, arch)
    assert found.regret < 1.06, (found.first, found.fastest)


@pytest.mark.parametrize("arch", [H100, H200], ids=lambda a: a.name)
def test_softmax_keeps_rows_in_registers_where_they_fit(lines, arch) -> None:
    found = [_regret_of(x, arch) for x in lines if json.loads(x)["row"][:3] == "sof"]
    assert len(found) == 6
    assert all(r.regret < 1.03 for r in found if r.name != "softmax-128-10-float16"), found


def test_the_report_has_every_row_and_group(lines) -> None:
    text = cuda_regret.report([_regret_of(line, H200) for line in lines[:5]])
    assert all(json.loads(line)["row"] in text for line in lines[:5])
    assert "conv: geometric mean" in text and "all: geometric mean" in text


def test_the_recorded_sweep_can_be_fitted(lines) -> None:
    [points] = cuda_fit.points_of(lines[1:2])
    assert points.configs[0].arch.name == H200.name and len(points.configs) == 23


def test_without_measurements_it_says_so(tmp_path, capsys) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(SystemExit):
        cuda_regret.main([str(empty)])
    assert "must hold configurations" in capsys.readouterr().err

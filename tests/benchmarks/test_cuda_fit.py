"""Tests of the fit of the GPU cost model: sampling of configurations, recovery of constants."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import cuda_fit, cuda_sweep
from benchmarks.cuda_rows import row
from tvmopt.device.cuda_costs import CudaCosts
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.cost import gemm_cost
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.measurer import Measured

H200 = GPUS["nvidia-h200"]
ROWS = ("matmul_nt-777-1024-4096-float16", "matmul_nt-512-512-2048-float16")
CHANGED = {"smem_store_cycles": 3.0, "cluster_split_k_cycles": 4.0}


@pytest.fixture(scope="module")
def drawn():
    return {name: cuda_sweep.drawn(policy_of(row(name).func, H200).ranked, 60, 0) for name in ROWS}


def test_the_best_is_first_and_none_is_drawn_twice(drawn) -> None:
    for name, chosen in drawn.items():
        ranked = policy_of(row(name).func, H200).ranked
        hints = [r.hint for r in chosen]
        assert hints[0] == ranked[0].hint
        assert len(hints) == len(set(hints)) == 60
        assert sum(h.cluster_split_k > 1 for h in hints) >= 12
        assert chosen[-1].cycles > ranked[60].cycles


def test_a_small_space_is_drawn_completely() -> None:
    ranked = policy_of(row(ROWS[0]).func, H200).ranked[:5]
    assert {r.hint for r in cuda_sweep.drawn(ranked, 60, 0)} == {r.hint for r in ranked}


def test_a_fit_finds_what_was_changed(drawn) -> None:
    want = {name: factor * getattr(COSTS, name) for name, factor in CHANGED.items()}
    changed = dataclasses.replace(COSTS, **want)
    clock_mhz = 1e3 * H200.clock_ghz
    lines = []
    for name, chosen in drawn.items():
        problem = match(row(name).func).problem
        us = [gemm_cost(problem, r.hint, changed).cycles / clock_mhz for r in chosen]
        measured = [Measured(r.hint, t, None) for r, t in zip(chosen, us, strict=True)]
        measured[-1] = Measured(chosen[-1].hint, None, "run: failed")
        lines.append(cuda_sweep.line_of(name, chosen, measured))
    points = cuda_fit.points_of(lines)
    assert [p.name for p in points] == list(ROWS)
    assert all(len(p.configs) <= 59 for p in points)
    found = cuda_fit.fit(points, list(CHANGED), COSTS)
    for name, value in want.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.3)
    assert found.k_block_cycles == COSTS.k_block_cycles
    assert all(p.regret(found) < 1.02 for p in points)
    assert "geometric mean 1.0" in cuda_fit.report(points, found)


def test_a_fit_of_costs_that_families_share_finds_what_was_changed() -> None:
    start = CudaCosts()
    changed = dataclasses.replace(start, reread_cycles=4 * start.reread_cycles)
    arch = dataclasses.replace(H200, costs=changed)
    name = "softmax-128-10-float16"
    ranked = [
        r for r in policy_of(row(name).func, arch).ranked if r.hint.template == "gpu_row_reduction"
    ]
    clock_mhz = 1e3 * H200.clock_ghz
    measured = [Measured(r.hint, r.cycles / clock_mhz, None) for r in ranked]
    points = cuda_fit.points_of([cuda_sweep.line_of(name, ranked, measured)], "gpu_row_reduction")
    found = cuda_fit.fit(points, ["reread_cycles"], start)
    assert found.reread_cycles == pytest.approx(changed.reread_cycles, rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--constants", "nothing", "x"],
            "constants must be fields of HopperCosts, but got 'nothing'",
        ),
        (["{empty}"], "must hold configurations of hopper_gemm, but they hold none"),
    ],
)
def test_bad_arguments_are_told_in_one_line(arguments, message, tmp_path, capsys) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(SystemExit):
        cuda_fit.main([argument.format(empty=empty) for argument in arguments])
    assert message in capsys.readouterr().err

"""Tests of the fit of the GPU cost model: sampling of configurations, recovery of constants."""

from __future__ import annotations

import pytest

from benchmarks import cuda_fit, cuda_sweep
from benchmarks.cuda_rows import row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper import cost as model
from tvmopt.kernels.cuda.hopper.hints import config_of
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.measurer import Measured

H200 = GPUS["nvidia-h200"]
ROWS = ("matmul_nt-777-1024-4096-float16", "matmul_nt-512-512-2048-float16")
CHANGED = {"_STORE_STAGED": 3.0, "_MEET": 4.0}


@pytest.fixture
def constants(monkeypatch):
    """The model's constants, which are as before afterwards."""
    for name in cuda_fit.CONSTANTS:
        monkeypatch.setattr(model, name, getattr(model, name))


@pytest.fixture(scope="module")
def drawn():
    return {name: cuda_sweep.drawn(policy_of(row(name).func, H200).ranked, 60, 0) for name in ROWS}


def test_the_best_is_first_and_none_is_drawn_twice(drawn) -> None:
    for name, chosen in drawn.items():
        ranked = policy_of(row(name).func, H200).ranked
        hints = [r.hint for r in chosen]
        assert hints[0] == ranked[0].hint
        assert len(hints) == len(set(hints)) == 60
        assert sum(h.split_k > 1 and not h.option("apart") for h in hints) >= 12
        assert chosen[-1].cycles > ranked[60].cycles


def test_a_small_space_is_drawn_completely() -> None:
    ranked = policy_of(row(ROWS[0]).func, H200).ranked[:5]
    assert {r.hint for r in cuda_sweep.drawn(ranked, 60, 0)} == {r.hint for r in ranked}


def test_a_fit_finds_what_was_changed(drawn, constants, monkeypatch) -> None:
    before = {name: getattr(model, name) for name in CHANGED}
    lines = []
    for name, chosen in drawn.items():
        with monkeypatch.context() as other:
            for constant, factor in CHANGED.items():
                other.setattr(model, constant, factor * before[constant])
            problem = match(row(name).func).problem
            us = [
                model.gemm_cost(problem, config_of(r.hint), H200).cycles / (1e3 * H200.clock_ghz)
                for r in chosen
            ]
        measured = [Measured(r.hint, t, None) for r, t in zip(chosen, us, strict=True)]
        measured[-1] = Measured(chosen[-1].hint, None, "run: failed")
        lines.append(cuda_sweep.line_of(name, chosen, measured))
    points = cuda_fit.points_of(lines)
    assert [p.name for p in points] == list(ROWS)
    assert all(len(p.configs) <= 59 for p in points)
    found = cuda_fit.fit(points, list(CHANGED))
    for name, factor in CHANGED.items():
        assert found[name] == pytest.approx(factor * before[name], rel=0.3)
    assert all(p.regret < 1.02 for p in points)
    assert "geometric mean 1.0" in cuda_fit.told(points)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--constants", "_NOTHING", "x"],
            "must be numbers of tvmopt.kernels.cuda.hopper.cost, but got '_NO",
        ),
        (["{empty}"], "must hold products of hopper_gemm, but they hold none"),
    ],
)
def test_bad_arguments_are_told_in_one_line(arguments, message, tmp_path, capsys) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(SystemExit):
        cuda_fit.main([argument.format(empty=empty) for argument in arguments])
    assert message in capsys.readouterr().err

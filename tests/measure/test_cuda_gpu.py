"""Candidates of a GPU are built without one; measuring them says that there is none."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import tvm

from benchmarks.cuda_rows import row
from tests.kernels.cuda.serial import emulated, inputs_of, run, serial
from tests.kernels.cuda.winograd import Problem
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.reference import reference, tiled_gemm
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import family_of, policy_of
from tvmopt.measure.check import WrongResultError
from tvmopt.measure.cuda_check import check_no_place_lost
from tvmopt.measure.cuda_gpu import CudaGpu
from tvmopt.measure.jobs import build
from tvmopt.measure.measurer import Built, Candidates, Measured, Measurer, divide
from tvmopt.measure.workers import Outcome
from tvmopt.tune import TuneOptions, create_strategy
from tvmopt.tune.apply_and_build import apply_and_build

H200 = GPUS["nvidia-h200"]
FUNC = row("sum-64-256-float16").func
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
has_gpu = bool(tvm.runtime.cuda(0).exist)


@needs_nvcc
def test_each_candidate_is_built_or_says_why_not(tmp_path) -> None:
    good = policy_of(FUNC, H200).emit_config(2)
    bad = [HopperConfig("hopper_gemm", H200, tile_n=64), GemvConfig("no_such", H200, 1)]
    path = tmp_path / "candidates.so"
    hints = [h.to_dict() for h in [*good, *bad]]
    built = build(CudaGpu(H200).to_dict(), tvm.ir.save_json(FUNC), hints, str(path))
    assert built["errors"][:2] == [None, None]
    assert built["errors"][2].startswith("schedule: NotApplicable")
    assert built["errors"][3].startswith("schedule: NotApplicable: no_such is no kernel family")
    library = tvm.runtime.load_module(str(path))
    for name in ("candidate0", "candidate1", "reference", "compare"):
        assert library.implements_function(name)
    assert not library.implements_function("candidate2")


def test_large_products_have_a_reference_in_tiles() -> None:
    small, large = (row(f"matmul_nt-{n}-{n}-{n}-float16").func for n in (64, 4096))
    assert tiled_gemm(small, H200) is None
    tiles = tiled_gemm(large, H200)
    assert tiles is not None
    assert reference(large, H200).script() == tiles.script() != reference(small, H200).script()


def test_winograds_transforms_have_a_reference_of_little_text() -> None:
    for func in Problem((1, 6, 7, 8), 8).functions()[::2]:
        made = reference(func, H200)
        assert made.script().count('thread="blockIdx.x"') >= 2 and "unroll" not in made.script()
        inputs = inputs_of(func)
        np.testing.assert_allclose(run(serial(made), inputs), run(func, inputs), atol=1e-4)


def efforts(hints: list[Hint]) -> list[float]:
    return [family_of(hint).build_effort(hint) for hint in hints]


@pytest.mark.parametrize(("count", "parts"), [(0, 4), (1, 4), (4, 4), (21, 4), (20, 16)])
def test_hints_are_dealt_to_all_builders(count: int, parts: int) -> None:
    chunks = divide([1.0] * count, parts)
    assert sorted(n for chunk in chunks for n in chunk) == list(range(count))
    sizes = [len(chunk) for chunk in chunks]
    assert len(sizes) == min(count, parts) and (not sizes or max(sizes) - min(sizes) <= 1)


def test_what_takes_long_is_built_alone() -> None:
    hints = [GemvConfig("gpu_gemv", H200, 1)] * 4 + [HopperConfig("hopper_gemm", H200)] * 2
    assert sorted(map(sorted, divide(efforts(hints), 4))) == [[0, 2], [1, 3], [4], [5]]


def test_text_that_is_unrolled_takes_long() -> None:
    long, short = (
        SimtConfig("simt_matmul", H200, (64, 128), (8, 16), k_block) for k_block in (16, 4)
    )
    assert sorted(map(sorted, divide(efforts([short, long, short]), 2))) == [[0, 2], [1]]


def test_the_last_builder_has_less_when_it_builds_the_reference_first() -> None:
    chunks = divide([1.0] * 7, 4, 1.0)
    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 1]


@needs_nvcc
@pytest.mark.skipif(has_gpu, reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_measured_and_nothing_lost(tmp_path) -> None:
    [hint] = policy_of(FUNC, H200).emit_config(1)
    with Measurer(CudaGpu(H200), tmp_path, builders=1) as measurer:
        [[measured]] = measurer.measure([Candidates(FUNC, [hint])])
    assert measured.latency_us is None and measured.built is not None
    assert measured.error is not None and measured.error.startswith("run: ")


def test_no_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="configs must hold at least one configuration"):
        apply_and_build(FUNC, [], H200)


@pytest.mark.skipif(has_gpu, reason="this machine has a GPU")
def test_the_strategy_needs_the_gpu(tmp_path) -> None:
    options = TuneOptions(trials=0, time_budget_s=0, threads=1)
    with pytest.raises(ConfigError, match="needs this machine's GPU, but"):
        create_strategy("fast").tune([], H200.to_tvm(), H200, options, tmp_path, lambda *_: None)
    with pytest.raises(ConfigError, match="topk must be at least 1, but got 0"):
        create_strategy("fast").tune(
            [], H200.to_tvm(), H200, dataclasses.replace(options, topk=0), tmp_path, lambda *_: None
        )


class _Runner:
    """Stands in for the process that runs: answers ``outcomes``, and counts how often it ends."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes, self.closed = list(outcomes), 0

    def run(self, jobs, stop=lambda: False):
        return [self.outcomes.pop(0) for _ in jobs]

    def close(self) -> None:
        self.closed += 1


def _measured(tmp_path, runner: _Runner):
    library = tmp_path / "candidates.so"
    hints = policy_of(FUNC, H200).emit_config(2)
    built = [
        Measured(hint, None, None, built=Built(library, n, ([], []), library))
        for n, hint in enumerate(hints)
    ]
    with Measurer(CudaGpu(H200), tmp_path, builders=1) as measurer:
        measurer._runner.close()
        measurer._runner = runner
        return measurer._run(Candidates(FUNC, hints), built)


def test_after_a_fault_nothing_counts_and_each_is_run_again_alone(tmp_path) -> None:
    good = {"latency_us": 3.0, "rounds": 5, "error": None}
    bad = {"latency_us": None, "rounds": 0, "error": "run: CUDA error 700"}
    again = {"latency_us": 4.0, "rounds": 6, "error": None}
    runner = _Runner(Outcome([good, bad]), Outcome([again]), Outcome([bad]))
    one, two = _measured(tmp_path, runner)
    assert (one.latency_us, one.error) == (4.0, None)
    assert (two.latency_us, two.error) == (None, "run: CUDA error 700")
    assert runner.closed == 3  # after either fault, and at the end


def test_a_fault_of_the_whole_batch_ends_the_process_too(tmp_path) -> None:
    runner = _Runner(Outcome(error="InternalError: CUDA: an illegal memory access"))
    for m in _measured(tmp_path, runner):
        assert m.latency_us is None
        assert m.error == "run: InternalError: CUDA: an illegal memory access"
    assert runner.closed == 2


def test_other_errors_leave_the_process_and_the_results(tmp_path) -> None:
    good = {"latency_us": 3.0, "rounds": 5, "error": None}
    wrong = {"latency_us": None, "rounds": 0, "error": "run: wrong result"}
    runner = _Runner(Outcome([good, wrong]))
    one, two = _measured(tmp_path, runner)
    assert (one.latency_us, two.latency_us, runner.closed) == (3.0, None, 1)


@pytest.mark.parametrize(
    ("name", "spreads"),
    [
        ("gemv_i4-4096-4096-float16", True),
        ("gemv-4096-4096-float16", False),
        ("conv2d-128-64-224-224-3-7-7-2-1-3-float16", True),
        ("conv2d-8-28-28-128-128-3-3-1-1-1-float16", False),
    ],
)
def test_families_that_spread_nan_say_so(name: str, spreads: bool) -> None:
    func = row(name).func
    hint = policy_of(func, H200).ranked[0].hint
    assert family_of(hint).spreads_non_finite(func) == spreads


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("matmul_nt-1024-1024-1024-float32", False),
        ("matmul_nt-1024-1024-1024-tf32", True),
        ("matmul_nt-1024-1024-1024-float16", True),
    ],
)
def test_families_whose_results_overflow_elsewhere_say_so(name: str, alike: bool) -> None:
    func = row(name).func
    hint = policy_of(func, H200).ranked[0].hint
    assert hint.template == "hopper_gemm"
    assert family_of(hint).overflows_alike(func) == alike


def test_a_spreading_candidate_may_add_nan_but_lose_none() -> None:
    wanted = np.array([1.0, np.nan, np.inf, 2.0], np.float16)
    check_no_place_lost(np.array([np.nan, np.nan, np.nan, 2.0], np.float16), wanted)
    with pytest.raises(WrongResultError, match="1 outputs are finite where planted inputs give"):
        check_no_place_lost(np.array([1.0, np.nan, 65504.0, 2.0], np.float16), wanted)


def test_a_convolution_of_few_channels_spreads_nan_and_loses_none() -> None:
    func = row("conv2d-1-8-12-12-3-5-5-1-1-2-float16").func
    hint = next(r.hint for r in policy_of(func, H200).ranked if r.hint.template == "hopper_conv")
    inputs = inputs_of(func)
    inputs[0][0, 6, 6, 1] = np.nan
    wanted, got = np.isnan(run(func, inputs)), np.isnan(emulated(func, hint, inputs))
    assert wanted.any() and not wanted.all()
    assert got[wanted].all()
    assert got.sum() > wanted.sum()  # else the family need not say that it spreads NaN

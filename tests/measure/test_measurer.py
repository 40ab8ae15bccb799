"""A task's candidates: built together, checked before they are timed, timed interleaved."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te, tirx

from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.nest import PREPROC
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure import host_cpu
from tvmopt.measure.check import random_array, run_reference
from tvmopt.measure.device import Inputs
from tvmopt.measure.host_cpu import ColdTimer, HostCpu, producer
from tvmopt.measure.interleave import ROUNDS
from tvmopt.measure.jobs import build, run
from tvmopt.measure.measurer import Candidates, Measured, Measurer, best_of, weight_bytes
from tvmopt.measure.split import split_packing
from tvmopt.transform.lower import lower

SPEC = resolve_target("host", 2)
TARGET, ARCH = SPEC.to_tvm(), SPEC.arch()
HOST = HostCpu(ARCH)
UNFIT = UnmodelledConfig("elementwise", ARCH)
ARGUMENTS = [[[40, 24], "float32"], [[24, 40], "float32"], [[40, 40], "float32"]]


def product(activation=relax.op.nn.relu) -> tirx.PrimFunc:
    """``activation(x @ w)``, 40 x 24 by 24 x 40, the weight known."""
    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(n, relax.TensorType(s, "float32"))
        for n, (s, _) in zip("xw", ARGUMENTS[:2], strict=True)
    )
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(activation(builder.emit(relax.op.matmul(x, w))))
        builder.emit_func_output(out)
    mod = lower(builder.get(), TARGET)
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


@pytest.fixture(scope="module")
def func() -> tirx.PrimFunc:
    return product()


# Tiles of 20 columns, packed as whole vectors, once and at every call.
CONSTANT = RegisterTileConfig(
    "register_tile", ARCH, register_tile=(8, 20), loop_order=(0, 1), packing="prepacked"
)
CALL = dataclasses.replace(CONSTANT, packing="runtime")
PLAIN = UnmodelledConfig("contraction", ARCH)


def _build(func: tirx.PrimFunc, hints: list[CpuHint], path: Path) -> dict:
    built = build(HOST.to_dict(), tvm.ir.save_json(func), [h.to_dict() for h in hints], str(path))
    json.dumps(built)  # it travels between processes
    return built


def _run(path: Path, candidates: list[list]) -> list[dict]:
    inputs = dataclasses.asdict(Inputs(ARGUMENTS, [1]))
    group = {"libraries": [str(path)], "inputs": inputs, "candidates": candidates}
    return run(HOST.to_dict(), [group], ROUNDS)


def _candidates(built: dict) -> list[list]:
    return [
        [0, n, *packed]
        for n, (error, packed) in enumerate(zip(built["errors"], built["packed"], strict=True))
        if error is None
    ]


# --- split_packing -------------------------------------------------------------------------------


def test_what_is_packed_once_is_taken_out(func) -> None:
    whole = finish(emit(func, CONSTANT).mod["main"], func)
    parts = split_packing(whole)
    assert parts.packer is not None
    assert parts.packed == (1,)
    lanes = ARCH.lanes("float32")
    packed = [2, 24, -(-20 // lanes) * lanes]
    assert [int(e) for e in parts.packer.params[-1].shape] == packed
    assert [[int(e) for e in p.shape] for p in parts.compute.params] == [[40, 24], packed, [40, 40]]


@pytest.mark.parametrize("hint", [CALL, PLAIN])
def test_what_packs_at_every_call_is_left_whole(func, hint: CpuHint) -> None:
    whole = finish(emit(func, hint).mod["main"], func)
    parts = split_packing(whole)
    assert parts.compute.same_as(whole)
    assert parts.packer is None
    assert parts.packed == ()


def test_parameters_are_listed_as_the_packer_takes_them() -> None:
    """MetaSchedule packs a bias, too, and in any order."""
    a, weight, bias = (te.placeholder(shape, "float32") for shape in ((4, 8), (8, 16), (16,)))
    k = te.reduce_axis((0, 8), "k")
    product = te.compute((4, 16), lambda i, j: te.sum(a[i, k] * weight[k, j], axis=[k]), "product")
    out = te.compute((4, 16), lambda i, j: product[i, j] + bias[j], "out")
    sch = s_tir.Schedule(te.create_prim_func([a, weight, bias, out]))
    for block in ("product", "out"):
        sch.annotate(sch.cache_read(sch.get_sblock(block), 1, "global"), PREPROC, True)
    parts = split_packing(sch.mod["main"].with_attr("layout_free_buffers", [1, 2]))
    assert parts.packer is not None
    assert parts.packed == (2, 1)
    assert [[int(e) for e in p.shape] for p in parts.packer.params] == [[16], [8, 16]] * 2
    assert parts.outputs == [([16], "float32"), ([8, 16], "float32")]


# --- jobs.build and jobs.run, in this process --------------------------------------------------


@pytest.mark.alone
def test_good_candidates_are_timed(func, tmp_path: Path) -> None:
    path = tmp_path / "batch.so"
    built = _build(func, [CONSTANT, CALL, PLAIN], path)
    assert built["errors"] == [None, None, None]
    assert [bool(packed and packed[0]) for packed in built["packed"]] == [True, False, False]
    results = _run(path, _candidates(built))
    for result in results:
        assert result["error"] is None
        assert 0 < result["latency_us"] < 1e5
        assert result["rounds"] >= 1


def test_a_hint_that_does_not_fit_leaves_the_others(func, tmp_path: Path) -> None:
    built = _build(func, [UNFIT, PLAIN], tmp_path / "batch.so")
    assert built["errors"][0] == "schedule: NotApplicable: elementwise: it has a reduction"
    assert built["errors"][1] is None
    # The library holds the reference and the one that is left.
    module = tvm.runtime.load_module(str(tmp_path / "batch.so"))
    assert module["reference"] is not None
    assert module["candidate1"] is not None
    with pytest.raises(AttributeError, match="candidate0"):
        module["candidate0"]


@pytest.mark.alone
def test_a_wrong_result_is_an_error_and_is_not_timed(func, tmp_path: Path) -> None:
    """A library whose second candidate forgets the activation."""
    wrong = product(relax.op.negative)
    functions = {
        "reference": func,
        "candidate0": emit(func, PLAIN).mod["main"],
        "candidate1": emit(wrong, PLAIN).mod["main"],
        "produce0": producer(func.params[0], 2),
    }
    path = tmp_path / "batch.so"
    module = tvm.IRModule(
        {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    )
    tvm.tirx.build(module, target=TARGET, pipeline="s_tir").export_library(str(path))
    right, bad = _run(path, [[0, 0, [], []], [0, 1, [], []]])
    assert right["error"] is None
    assert right["latency_us"] > 0
    assert bad["latency_us"] is None
    assert bad["rounds"] == 0
    assert bad["error"].startswith("run: WrongResultError: wrong result: argument 2 is off by")


def test_a_weight_packed_by_the_wrong_function_is_an_error(func, tmp_path: Path) -> None:
    part = split_packing(finish(emit(func, CONSTANT).mod["main"], func))
    other = dataclasses.replace(CONSTANT, register_tile=(8, 40))
    wide = split_packing(finish(emit(func, other).mod["main"], func))
    assert part.packer is not None
    assert wide.packer is not None
    functions = {
        "reference": func,
        "candidate0": part.compute,
        "pack0": wide.packer,
        "produce0": producer(func.params[0], 2),
    }
    path = tmp_path / "batch.so"
    module = tvm.IRModule(
        {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    )
    tvm.tirx.build(module, target=TARGET, pipeline="s_tir").export_library(str(path))
    shapes = [[int(e) for e in wide.packer.params[-1].shape]]
    [result] = _run(path, [[0, 0, [1], shapes]])
    assert result["latency_us"] is None
    assert result["error"]


def test_candidates_rotate_through_the_copies_of_weights(func, tmp_path: Path) -> None:
    """No candidate finds in the cache what another has read; the pool is as large as is said."""
    path = tmp_path / "batch.so"
    _build(func, [PLAIN, CALL], path)
    module = tvm.runtime.load_module(str(path))
    shapes = [(tuple(shape), dtype) for shape, dtype in ARGUMENTS]
    inputs, _ = run_reference(module["reference"], shapes, 0)
    read: list[int] = []

    class Kernel:
        """A candidate whose weights are noted."""

        def __init__(self, name: str) -> None:
            self._call = module[name]

        def __call__(self, *tensors) -> None:
            read.append(np.from_dlpack(tensors[1]).ctypes.data)
            self._call(*tensors)

    size = 24 * 40 * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_cpu, "_SMALL", 1)
        timer = ColdTimer(module, inputs, [1], weight_bytes=6 * size)
        tensors = [tvm.runtime.tensor(array) for array in inputs]
        calls = [timer.timing(Kernel(f"candidate{n}"), tensors) for n in range(2)]
        calls[0](1)
        calls[1](2)
    places = len(timer._places)
    assert len(read) == 3 * places
    assert len(set(read)) == min(6, 3 * places)
    assert np.ptp(read) == (min(6, 3 * places) - 1) * size


# --- Measurer, in its own processes ------------------------------------------------------------


@pytest.mark.alone
def test_hints_are_measured_out_of_process(func, tmp_path: Path) -> None:
    good = DefaultPolicy(func, ARCH).emit_config(2)
    relu = product(relax.op.negative)
    with Measurer(HOST, tmp_path, builders=1) as measurer:
        one, two = measurer.measure([Candidates(func, [*good, UNFIT]), Candidates(relu, [UNFIT])])
        assert [m.hint for m in one] == [*good, UNFIT]
        for measured in one[:2]:
            assert measured.error is None
            assert measured.latency_us is not None
            assert measured.latency_us > 0
            assert measured.rounds >= 1
        assert one[2] == Measured(
            UNFIT, None, "schedule: NotApplicable: elementwise: it has a reduction"
        )
        # Nothing of the second function could be built, and that is no reason to fail.
        assert [m.latency_us for m in two] == [None]
        assert best_of(two) is None
        assert best_of([*one, *two]) == min(one[:2], key=lambda m: m.latency_us or 0)
        assert measurer.measure([Candidates(func, good)], stop=lambda: True) == [[]]
    assert not list(tmp_path.glob("*.so")), "libraries are removed with their measurer"


@pytest.mark.slow  # two rounds of processes
@pytest.mark.alone
def test_earlier_candidates_are_timed_again_beside_new_ones(func, tmp_path: Path) -> None:
    with Measurer(HOST, tmp_path, builders=1) as measurer:
        [[call, unfit]] = measurer.measure([Candidates(func, [CALL, UNFIT], rounds=2)])
        assert (call.rounds, unfit.built) == (2, None)
        group = Candidates(func, [CONSTANT, PLAIN], again=[call], rounds=3)
        [results] = measurer.measure([group])
        [once_more] = measurer.measure([Candidates(func, (), again=results, rounds=2)])
    assert [(m.hint, m.rounds) for m in once_more] == [(m.hint, 2) for m in results]
    assert [m.hint for m in results] == [CALL, CONSTANT, PLAIN]
    assert all(m.error is None and m.rounds == 3 for m in results)
    assert call.built is not None and results[0].built is call.built
    assert results[1].built is not None and results[1].built.library != call.built.library


@pytest.mark.slow  # two rounds of processes
def test_candidates_of_any_round_are_checked_with_the_first_library(func, tmp_path: Path) -> None:
    hints = [r.hint for r in DefaultPolicy(func, ARCH).ranked][:3]
    with Measurer(HOST, tmp_path, builders=1) as measurer:
        [last] = measurer.measure([Candidates(func, hints[:1])])[0]
        for hint in hints[1:]:  # each beside the one before, whose library has no reference
            again, last = measurer.measure([Candidates(func, [hint], [last])])[0]
            assert (again.error, last.error) == (None, None)
        [alone] = measurer.measure([Candidates(func, [], [last])])[0]
    assert alone.error is None
    assert alone.latency_us is not None


@pytest.mark.slow  # a crash does so below
@pytest.mark.alone
def test_a_worker_that_is_too_late_leaves_the_others_measured(
    func, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one candidate hangs, and the batch with it; one by one, the other is measured."""
    hints = [CALL, PLAIN]
    with Measurer(HostCpu(ARCH, run_timeout_s=1.0), tmp_path, builders=1) as measurer:
        run = measurer._runner.run

        def hang(jobs, stop=lambda: False):
            """In place of candidate 0, a process that never answers."""
            held = [
                dataclasses.replace(job, function="signal:pause", arguments={})
                if any(index == 0 for _, index, *_ in job.arguments["groups"][0]["candidates"])
                else dataclasses.replace(job, timeout_s=30.0)
                for job in jobs
            ]
            return run(held, stop)

        monkeypatch.setattr(measurer._runner, "run", hang)
        [[late, right]] = measurer.measure([Candidates(func, hints)])
    assert late.latency_us is None
    assert str(late.error).startswith("run: timeout after")
    assert right.error is None
    assert right.latency_us is not None


@pytest.mark.alone
def test_a_crash_leaves_the_others_measured(
    func, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Measurer(HOST, tmp_path, builders=1) as measurer:
        run = measurer._runner.run

        def crash(jobs, stop=lambda: False):
            return run(
                [
                    dataclasses.replace(job, function="os:abort", arguments={})
                    if any(index == 1 for _, index, *_ in job.arguments["groups"][0]["candidates"])
                    else job
                    for job in jobs
                ],
                stop,
            )

        monkeypatch.setattr(measurer._runner, "run", crash)
        [[right, crashed]] = measurer.measure([Candidates(func, [CALL, PLAIN])])
    assert crashed.error == "run: worker crashed: SIGABRT"
    assert right.latency_us is not None


def test_a_build_that_is_too_late_is_an_error_of_its_hints(func, tmp_path: Path) -> None:
    with Measurer(HostCpu(ARCH, build_timeout_s=1e-3), tmp_path, builders=1) as measurer:
        [results] = measurer.measure([Candidates(func, [CALL, PLAIN])])
    assert [m.latency_us for m in results] == [None, None]
    assert all(str(m.error).startswith("build: timeout after") for m in results)


def test_bytes_of_the_weights_of_a_call(func) -> None:
    assert weight_bytes(func) == 24 * 40 * 4
    assert weight_bytes(func.without_attr("layout_free_buffers")) == 0


def test_the_best_of_nothing_is_nothing() -> None:
    assert best_of([]) is None
    assert best_of([Measured(PLAIN, None, "failed")]) is None
    fast, slow = Measured(PLAIN, 1.0, None), Measured(CALL, 2.0, None)
    assert best_of([slow, Measured(CONSTANT, None, "x"), fast]) is fast


def test_inputs_are_random_and_the_same_for_all() -> None:
    one, two = (random_array(np.random.default_rng(3), (4, 5), "float32", False) for _ in "ab")
    np.testing.assert_array_equal(one, two)
    assert len(np.unique(one)) == 20

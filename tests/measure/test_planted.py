"""Candidates that drop or move NaN are rejected, on CPUs and on GPUs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.target import Target

from tvmopt.compare import same_non_finite
from tvmopt.device.gpus import GPUS
from tvmopt.device.target import resolve_target
from tvmopt.measure import cuda_check, cuda_gpu
from tvmopt.measure.check import WrongResultError, check_places
from tvmopt.measure.cuda_gpu import CudaGpu
from tvmopt.measure.device import Device, Inputs
from tvmopt.measure.host_cpu import HostCpu, producer
from tvmopt.measure.jobs import run
from tvmopt.measure.planted import Planting, plant, planted_cases, planting
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

SPEC = resolve_target("host", 1)
TARGET = SPEC.to_tvm()
SHAPE = (24, 40)
ARGUMENTS = [[list(SHAPE), "float32"], [list(SHAPE), "float32"]]
ZERO, SIX = tirx.const(0.0, "float32"), tirx.const(6.0, "float32")


def elementwise(compute, shape=SHAPE, dtype="float32") -> tirx.PrimFunc:
    x = te.placeholder(shape, dtype, "x")
    return te.create_prim_func([x, te.compute(shape, lambda *i: compute(x[i]), "y")])


# Each equals the first on every finite value that is not huge.
CLIP = elementwise(lambda x: te.max(te.min(x, SIX), ZERO))
LOSES_NAN = elementwise(lambda x: tirx.Select(x > ZERO, te.min(x, SIX), ZERO))
EXP = elementwise(lambda x: tirx.Select(x < ZERO, te.exp(x), x + tirx.const(1.0, "float32")))
CLAMPS = elementwise(
    lambda x: tirx.Select(
        x < ZERO,
        te.exp(te.max(x, tirx.const(-80.0, "float32"))),
        te.min(x, tirx.const(1e30, "float32")) + tirx.const(1.0, "float32"),
    )
)


def library(path: Path, **functions: tirx.PrimFunc) -> str:
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    built = tvm.tirx.build(
        tvm.IRModule(named), target=Target(json.loads(str(TARGET))), pipeline=CPU_PIPELINE
    )
    built.export_library(str(path))
    return str(path)


def measure(device: Device, path: str, arguments: list, planted: dict | None = None) -> list[dict]:
    """Check both candidates of a library and time them for one round."""
    inputs = dataclasses.asdict(Inputs(arguments, planted=planted))
    candidates = [[0, 0, [], []], [0, 1, [], []]]
    group = {"libraries": [path], "inputs": inputs, "candidates": candidates}
    return run(device.to_dict(), [group], 1)


@pytest.mark.parametrize(("right", "wrong"), [(CLIP, LOSES_NAN), (EXP, CLAMPS)])
def test_candidates_that_are_right_on_numbers_alone_are_refused(right, wrong, tmp_path) -> None:
    path = library(
        tmp_path / "batch.so", reference=right, candidate0=right, candidate1=wrong,
        produce0=producer(right.params[0], 1),
    )  # fmt: skip
    how = planting(right).to_dict()
    json.dumps(how)  # it travels between processes
    good, bad = measure(HostCpu(SPEC.arch()), path, ARGUMENTS, how)
    assert good["error"] is None and good["latency_us"] > 0
    assert bad["latency_us"] is None
    assert "NaN and infinities of planted inputs are not where the reference" in bad["error"]
    for result in measure(HostCpu(SPEC.arch()), path, ARGUMENTS):
        assert result["error"] is None  # random numbers do not tell


def reduction(kind, axis: int = 1) -> tirx.PrimFunc:
    x = te.placeholder(SHAPE, "float32", "x")
    k = te.reduce_axis((0, SHAPE[axis]), "k")
    return te.create_prim_func([x, te.compute((SHAPE[0],), lambda i: kind(x[i, k], axis=k), "y")])


def test_what_may_be_planted_depends_on_the_function() -> None:
    assert planting(CLIP) == Planting((0,), nan=True, huge=True)
    assert planting(reduction(te.sum)) == Planting((0,), nan=True, huge=True)
    assert planting(reduction(te.max)) == Planting((0,), nan=False, huge=True)
    assert not planting(CLIP, constants=[0]).arguments
    assert not planting(elementwise(lambda x: x + 1, dtype="int32")).arguments
    assert planting(elementwise(lambda x: x + x, dtype="float16")) == Planting((0,), huge=False)
    rounded = elementwise(lambda x: x.astype("int32").astype("float32"))
    assert not planting(rounded).arguments  # NaN may become any integer, which might be an index


def test_planted_inputs_hold_each_value_once_and_leave_the_others() -> None:
    inputs = [np.zeros((7, 90), np.float32), np.ones((3,), np.float32)]
    values = [1e-42, 1e38, np.inf, np.nan]
    planted, other = plant(inputs, [0], values, seed=3)
    assert other is inputs[1] and not inputs[0].any()
    for value in values:
        assert (np.isnan(planted) if np.isnan(value) else planted == np.float32(value)).sum() == 1
    assert np.isnan(plant([np.zeros(1, np.float32)], [0], values, seed=0)[0]).all()
    assert np.isnan(plant(inputs, [0], None, seed=0)[0]).all()


def test_where_nothing_but_nan_is_left_a_single_infinity_is_tried() -> None:
    inputs = [np.ones((1, 64), np.float32), np.empty((1, 4), np.float32)]

    def total(arrays: list[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(arrays[0].sum(axis=1, keepdims=True), (1, 4))

    how = Planting((0,)).to_dict()
    with np.errstate(invalid="ignore"):
        (_, first), (_, second) = planted_cases(inputs, how, 0, total)
        assert np.isnan(first).all() and np.isposinf(second).all()
        how = Planting((0,), nan=False).to_dict()
        *_, (_, last) = planted_cases(inputs, how, 0, total)
    assert np.isnan(last).all()
    assert planted_cases(inputs, None, 0, total) == []
    assert planted_cases(inputs, Planting().to_dict(), 0, total) == []


def test_infinities_of_narrow_floats_may_be_elsewhere_but_nan_may_not() -> None:
    wanted = np.array([1.0, np.inf, np.nan], np.float16)
    check_places(np.array([1.0, 65504.0, np.nan], np.float16), wanted)
    with pytest.raises(WrongResultError):
        check_places(np.array([np.nan, 65504.0, np.nan], np.float16), wanted)


class FakeTimer:
    """Fake of :class:`tvmopt.measure.cuda_graph.GraphTimer`, which needs a GPU."""

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None

    def launching(self):
        return self

    def wait(self) -> None:
        return None

    def timing(self, run):
        return lambda times: 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_candidates_of_a_gpu_are_refused(dtype, tmp_path, monkeypatch) -> None:
    """Run the GPU code of the worker on CPU kernels."""
    zero = tirx.const(0.0, dtype)
    right = elementwise(lambda x: te.max(x, zero), dtype=dtype)
    wrong = elementwise(lambda x: tirx.Select(x > zero, x, zero), dtype=dtype)
    monkeypatch.setattr(tvm.runtime, "cuda", lambda index: tvm.cpu())
    monkeypatch.setattr(cuda_gpu, "GraphTimer", FakeTimer)
    monkeypatch.setattr(
        cuda_gpu, "time_sustained", lambda kernels, rounds: dict.fromkeys(kernels, (1.0, 1))
    )
    monkeypatch.setattr(cuda_gpu, "_cached", {})
    path = library(
        tmp_path / "batch.so", reference=right, candidate0=right, candidate1=wrong,
        compare=cuda_check.plain_difference(SHAPE[0] * SHAPE[1], dtype),
    )  # fmt: skip
    arguments, gpu = [[list(SHAPE), dtype]] * 2, CudaGpu(GPUS["nvidia-h200"])
    how = planting(right).to_dict()
    good, bad = measure(gpu, path, arguments, how)
    assert (good["error"], good["latency_us"]) == (None, 1.0)
    assert bad["latency_us"] is None
    assert "NaN and infinities of planted inputs" in bad["error"]
    for result in measure(gpu, path, arguments):
        assert result["error"] is None


def test_same_places_are_those_of_nan_and_of_each_infinity() -> None:
    wanted = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert same_non_finite(wanted + 1, wanted)
    for place, value in enumerate([1.0, np.nan, np.inf, np.nan]):
        other = wanted.copy()
        other[place] = value
        assert not same_non_finite(other, wanted)

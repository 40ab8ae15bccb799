"""Tests of tuning tasks from operators and models: both variants of a task compute the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from benchmarks import tuning_tasks
from benchmarks.library import arrays_of, library_call
from benchmarks.operator_table import PLAIN, same_convolution
from benchmarks.operators import MatMul
from benchmarks.regret_table import regret_operators
from benchmarks.tuning_tasks import model_tasks, operator_task
from benchmarks.zoo_topologies import resnet
from tests.kernels.cpu.intrinsics.amx.kernels import NO_FEATURES
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target

TARGET = resolve_target("host", 1)


def test_ours_computes_a_convolution_by_winograd_and_plain_does_not(tmp_path):
    task = operator_task("conv3x3", same_convolution(32, 32, 24, 3), TARGET)
    assert "winograd" in task.ours.name and "winograd" not in task.plain.name
    assert task.ours.inputs == task.plain.inputs == [((1, 24, 24, 32), "float32")]
    x = np.random.default_rng(0).standard_normal((1, 24, 24, 32), dtype=np.float32)
    found = []
    for name, call in (("ours", task.ours), ("plain", task.plain)):
        built = build_library(call.module, TARGET, tmp_path / f"{name}.so", quick=True)
        found += arrays_of(library_call(built.path, [x])())
    assert np.std(found[0]) > 0.05
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("operator", [MatMul(3, 5, 7, bias=True), *PLAIN[:2]], ids=lambda o: o.name)
def test_other_operators_are_one_kernel_in_both_variants(operator):
    task = operator_task("rest", operator, TARGET)
    assert task.name == operator.name
    assert task.ours.name == task.plain.name


def test_kernels_of_a_model_are_distinct_and_the_heaviest(tmp_path):
    path = tmp_path / "resnet.onnx"
    onnx.save_model(resnet((2, 1), False, 32, 10, 16), path)
    tasks = model_tasks(path, "image:1x3x32x32", TARGET, 50)
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names)
    heavy = model_tasks(path, "image:1x3x32x32", TARGET, 2)
    assert [task.name for task in heavy] == names[:2]
    assert {"register_tile"} <= {task.kind for task in tasks}
    assert all("conv2d" in task.plain.name for task in heavy)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_kernels_of_a_model_have_its_dtype(dtype, tmp_path):
    path = tmp_path / "resnet.onnx"
    onnx.save_model(resnet((1, 1), False, 32, 10, 16), path)
    vectors = dataclasses.replace(TARGET, mattr=NO_FEATURES)
    first, *_ = model_tasks(path, "image:1x3x32x32", vectors, 2, dtype)
    assert {t for _, t in first.ours.inputs} <= {{"int8": "uint8", "bfloat16": "bfloat16"}[dtype]}
    assert first.kind == "register_tile"


def test_an_operator_can_be_in_bfloat16():
    task = operator_task("matmul", MatMul(8, 64, 32), TARGET, "bfloat16")
    assert "bfloat16" in [str(p.dtype) for p in task.ours.func.params]


def test_variants_with_different_inputs_are_refused(monkeypatch):
    calls = iter([[None], []])
    monkeypatch.setattr(tuning_tasks, "single_calls", lambda lowered: next(calls))
    with pytest.raises(ValueError, match="must call kernels with the same inputs, but got 1 and 0"):
        operator_task("conv", MatMul(3, 5, 7), TARGET)


def test_the_built_in_tasks_are_over_twenty_of_all_kinds():
    rows = regret_operators()
    names = [op.name for _, op in rows]
    assert len(rows) > 20 and len(set(names)) == len(names)
    kinds = {"conv3x3", "conv", "pointwise", "depthwise", "matmul", "pooling", "rows"}
    assert {kind for kind, _ in rows} == kinds

"""Tuning records of a GPU: the configuration of each record is emitted as a kernel again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R  # noqa: N812

from tvmopt.device.gpus import GPUS
from tvmopt.errors import DatabaseMismatchError
from tvmopt.kernels.cuda.pipeline import is_generated
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.lower import lower
from tvmopt.tune import TuneOptions, apply_database, create_database, extract_tasks
from tvmopt.tune.database import Comparison, workload_hash, write_comparisons

H200, A100 = GPUS["nvidia-h200"], GPUS["nvidia-a100"]
OPTIONS = TuneOptions(trials=0, time_budget_s=0, threads=1)


@pytest.fixture(scope="module")
def lowered() -> tvm.IRModule:
    """Lower a matmul with bias and ReLU, then a sum over rows."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((2048, 1024), "float16"))
    weight = relax.const(np.ones((1024, 1024), "float16"))
    bias = relax.const(np.ones(1024, "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, weight, out_dtype="float32"))
            y = builder.emit(relax.op.astype(y, "float16"))
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, bias)))
            out = builder.emit_output(relax.op.sum(y, axis=1))
        builder.emit_func_output(out)
    return lower(builder.get(), H200.to_tvm())


@pytest.fixture
def database(lowered, tmp_path):
    """Write a database with the top-1 hint of each function; the last record lost."""
    target = H200.to_tvm()
    create_database(tmp_path / "db", OPTIONS.key(target))
    compared = {}
    tasks = extract_tasks(lowered, target)
    for number, task in enumerate(tasks):
        [config] = policy_of(task.mod["main"], H200).emit_config(1)
        default = 1.0 if number == len(tasks) - 1 else 3.0
        compared[workload_hash(task.mod)] = Comparison("x", default, 2.0, config.to_dict())
    write_comparisons(tmp_path / "db", compared)
    return tmp_path / "db", tasks


def test_every_function_gets_the_kernel_of_its_record(lowered, database) -> None:
    directory, tasks = database
    target = H200.to_tvm()
    applied = apply_database(lowered, directory, OPTIONS.key(target), target, losers=True)
    assert len(applied.served) == len(tasks) >= 2 and not applied.missing
    kernels = [f for _, f in applied.mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert all(kernel.attrs["tirx.is_scheduled"] for kernel in kernels)
    assert sum(map(is_generated, kernels)) == 1  # the matmul


def test_a_record_that_lost_is_not_applied(lowered, database) -> None:
    directory, tasks = database
    target = H200.to_tvm()
    applied = apply_database(lowered, directory, OPTIONS.key(target), target)
    assert len(applied.served) == len(tasks) - 1
    [reason] = applied.missing.values()
    assert "measured to be faster" in reason


def test_records_of_another_gpu_are_refused(lowered, database) -> None:
    directory, _ = database
    target = A100.to_tvm()
    with pytest.raises(DatabaseMismatchError, match="target of the tuning database"):
        apply_database(lowered, directory, OPTIONS.key(target), target)


def test_records_of_operators_serve_the_functions_that_contain_them(lowered, tmp_path) -> None:
    target = H200.to_tvm()
    options = dataclasses.replace(OPTIONS, granularity="operator")
    create_database(tmp_path / "db", options.key(target))
    compared = {}
    for task in extract_tasks(lowered, target, "operator"):
        if not task.left_out:
            # the first one stores float32 in an epilogue that does not fit the fused float16
            best, *others = (c.to_dict() for c in policy_of(task.mod["main"], H200).emit_config(3))
            compared[workload_hash(task.mod)] = Comparison("x", 3.0, 2.0, best, others=(*others,))
    write_comparisons(tmp_path / "db", compared)
    applied = apply_database(lowered, tmp_path / "db", options.key(target), target)
    assert applied.granularity == "operator"
    kernels = {
        var.name_hint: func
        for var, func in applied.mod.functions_items()
        if var.name_hint in applied.served
    }
    # the fused matmul has the configuration of its operator, with the epilogue
    assert any("matmul" in name and is_generated(func) for name, func in kernels.items())
    assert not set(applied.missing) & applied.served

"""Traces of the GPU templates replay from a database, on the function as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import relax, s_tir
from tvm.s_tir import meta_schedule as ms

from tests.kernels.cuda.functions import int4_product, lowered, product, sums
from tests.kernels.cuda.serial import H200, hint
from tests.kernels.cuda.winograd import Problem
from tvmopt.kernels.emit import emit
from tvmopt.kernels.families import families_of

op, nn = relax.op, relax.op.nn
H = "float16"
CASES = {
    "gpu_elementwise": (
        lambda: lowered(op.add, ((16, 64), H), ((16, 64), H)),
        {"thread": (64,), "vector": 8, "unroll": 2},
    ),
    "gpu_transpose": (
        lambda: lowered(lambda x: op.permute_dims(x, [1, 0]), ((96, 64), H)),
        {"block": (32, 32), "thread": (128,), "vector": 4},
    ),
    "gpu_row_reduction": (
        lambda: lowered(lambda x: nn.softmax(x, -1), ((16, 128), H)),
        {"thread": (2,), "reduce_threads": 8, "vector": 4, "stage": 2},
    ),
    "gpu_column_reduction": (
        lambda: sums(0, ((128, 64), H)),
        {"thread": (8,), "reduce_threads": 8, "vector": 8, "split_k": 4},
    ),
    "gpu_column_walk": (
        lambda: lowered(lambda x: nn.softmax(x, 1), ((2, 12, 40), H)), {"thread": (32,)},
    ),
    "gpu_gemv": (
        lambda: int4_product(1, 32, 512, 32),
        {"block": (2,), "thread": (4,), "reduce_threads": 32, "vector": 2},
    ),
    "gpu_window": (
        lambda: lowered(
            lambda x: nn.max_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), ((2, 14, 14, 16), H)
        ),
        {"thread": (32,), "vector": 8, "direct": 1, "tile": 7},
    ),
    "gpu_winograd_data": (
        lambda: Problem((1, 8, 8, 8), 8).functions()[0],
        {"thread": (32,), "vector": 4, "tiles": 2},
    ),
    "gpu_winograd_out": (
        lambda: Problem((1, 7, 8, 8), 8).functions()[2], {"thread": (32,), "vector": 2},
    ),
    "gpu_fallback": (lambda: product(9, 20, 30), {"thread": (64,)}),
}  # fmt: skip


def test_every_template_is_here() -> None:
    assert set(CASES) <= {family.name for family in families_of(H200)}


@pytest.mark.parametrize("name", CASES)
def test_a_trace_replays_from_a_database(name: str, tmp_path: Path) -> None:
    make, values = CASES[name]
    module = tvm.IRModule({"main": make()})
    schedule = emit(module["main"], hint(name, **values))
    assert isinstance(schedule, s_tir.Schedule)
    database = ms.database.JSONDatabase(str(tmp_path / "w.json"), str(tmp_path / "t.json"))
    workload = database.commit_workload(module)
    record = ms.database.TuningRecord(schedule.trace, workload, [1.0], H200.to_tvm())
    database.commit_tuning_record(record)
    again = ms.database.JSONDatabase(str(tmp_path / "w.json"), str(tmp_path / "t.json"))
    replayed = again.query_schedule(module, H200.to_tvm(), "main")
    assert replayed is not None
    tvm.ir.assert_structural_equal(replayed.mod["main"].body, schedule.mod["main"].body)

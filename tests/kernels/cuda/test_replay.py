"""Traces of CUDA schedules replay from a tuning database."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import relax, s_tir
from tvm.s_tir import meta_schedule as ms

from tests.kernels.cuda.functions import int4_product, lowered, product, sums
from tests.kernels.cuda.serial import H200, hint
from tests.kernels.cuda.winograd import Problem
from tvmopt.kernels.cuda.row_reduction.config import RowCache
from tvmopt.kernels.emit import emit
from tvmopt.kernels.families import families_of

op, nn = relax.op, relax.op.nn
H = "float16"
CASES = {
    "gpu_elementwise": (
        lambda: lowered(op.add, ((16, 64), H), ((16, 64), H)),
        {"threads": 64, "vector_elements": 8, "vectors_per_thread": 2},
    ),
    "gpu_transpose": (
        lambda: lowered(lambda x: op.permute_dims(x, [1, 0]), ((96, 64), H)),
        {"tile": (32, 32), "threads": 128, "vector_elements": 4, "row_padding": 2},
    ),
    "gpu_row_reduction": (
        lambda: lowered(lambda x: nn.softmax(x, -1), ((16, 128), H)),
        {
            "threads": 2, "reduce_threads": 8, "vector_elements": 4,
            "row_cache": RowCache.REGISTERS,
        },
    ),
    "gpu_column_reduction": (
        lambda: sums(0, ((128, 64), H)),
        {"threads": 8, "reduce_threads": 8, "vector_elements": 8, "split_k": 4},
    ),
    "gpu_column_walk": (
        lambda: lowered(lambda x: nn.softmax(x, 1), ((2, 12, 40), H)), {"threads": 32},
    ),
    "gpu_gemv": (
        lambda: int4_product(1, 32, 512, 32),
        {
            "threads": 4, "rows_per_thread": 2, "reduce_threads": 32, "vector_elements": 2,
        },
    ),
    "gpu_window": (
        lambda: lowered(
            lambda x: nn.max_pool2d(x, (3, 3), (2, 2), 1, layout="NHWC"), ((2, 14, 14, 16), H)
        ),
        {
            "threads": 32, "vector_elements": 8, "vectorize_compute": True,
            "vectors_per_thread": 7,
        },
    ),
    "gpu_winograd_data": (
        lambda: Problem((1, 8, 8, 8), 8).functions()[0],
        {"threads": 32, "vector_elements": 4, "tiles_per_thread": 2},
    ),
    "gpu_winograd_out": (
        lambda: Problem((1, 7, 8, 8), 8).functions()[2], {"threads": 32, "vector_elements": 2},
    ),
    "gpu_fallback": (lambda: product(9, 20, 30), {"threads": 64}),
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

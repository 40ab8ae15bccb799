"""Tests of ``benchmarks.cuda_nan_cost`` without a GPU: the error message and the table."""

from __future__ import annotations

import pytest
import tvm

from benchmarks.cuda_nan_cost import AGAIN, DROPPED, KEPT, CudaNanCostRow, main, table

ROW = CudaNanCostRow(
    "resnet18",
    {KEPT: [2.02, 2.04, 2.0], DROPPED: [2.0, 2.0, 2.0], AGAIN: [2.02, 2.04, 2.0]},
    {KEPT: True, DROPPED: False, AGAIN: True},
)


@pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU")
def test_without_a_gpu_it_ends_with_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2 and "needs this machine's GPU" in capsys.readouterr().err


def test_the_table_has_ratios_of_the_same_round():
    cells = [cell.strip() for cell in table([ROW]).splitlines()[-1].strip("|").split("|")]
    assert cells == [
        "resnet18", "2.02", "2", "1.0100", "1.0000", "as PyTorch", "differs"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        CudaNanCostRow("a", problem="no kernel"),
        CudaNanCostRow("a", ROW.ms, {**ROW.agrees, KEPT: False}),
    ],
)
def test_a_network_that_fails_or_loses_nan_is_not_right(row):
    assert ROW.right and not row.right

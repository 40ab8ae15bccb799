"""Tests of ``benchmarks.nan_cost``: ratios over processes, the table, and one small model."""

from __future__ import annotations

import json
import math

import onnx
import pytest

from benchmarks.nan_cost import AGAIN, DROPPED, KEPT, NanCostRow, main, ratio, table


def test_a_constant_ratio_has_no_interval() -> None:
    found = ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_is_that_of_students_t() -> None:
    found = ratio([math.exp(0.01), math.exp(-0.01)], [1.0, 1.0])
    half = 12.7062 * 0.01  # t of one degree of freedom; standard error of the two logarithms
    assert found.mean == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(half), rel=1e-4)
    assert found.low == pytest.approx(math.exp(-half), rel=1e-4)


def test_the_cost_takes_both_libraries_with_the_pass() -> None:
    row = NanCostRow("net", {KEPT: [1.0, 1.0], AGAIN: [1.21, 1.21], DROPPED: [1.0, 1.0]})
    assert row.cost.mean == pytest.approx(1.1)
    assert row.noise.mean == pytest.approx(1.21)
    assert "1.1000 (1.1000-1.1000)" in table([row, NanCostRow("bad", problem="broken")])
    assert "bad" not in table([NanCostRow("bad", problem="broken")])


def test_one_process_has_no_interval(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--processes", "1"])
    assert "--processes must be at least 2, but got 1" in capsys.readouterr().err


@pytest.mark.slow  # processes that import TVM
def test_a_model_is_timed_in_processes_of_its_own(make_model, tmp_path, capfd) -> None:
    path, rows = tmp_path / "net.onnx", tmp_path / "rows.json"
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    specs = {"x": ("float32", (64,))}, {"y": ("float32", (64,))}
    onnx.save(make_model([node], *specs), path)
    given = ["--model", str(path), "--threads", "1", "--seconds", "0.1", "--processes", "2"]
    assert main([*given, "--json", str(rows)]) == 0
    [row] = json.loads(rows.read_text())["rows"]
    assert {name: len(values) for name, values in row["medians"].items()} == {
        KEPT: 2, DROPPED: 2, AGAIN: 2,
    }  # fmt: skip
    assert "equal libraries, geometric mean" in capfd.readouterr().out

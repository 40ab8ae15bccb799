"""Tests of benchmark reports: environment, rows as they finish, JSON file, exit code."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import report


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    problem: str = ""
    error: float = 0.0

    @property
    def right(self):
        return not self.problem


@pytest.mark.parametrize(("load", "told"), [(0.4, False), (3.0, True)])
def test_a_busy_machine_is_told(load, told, capsys, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("tvmopt.host.usable_cores", lambda: 2)
    report.print_environment(report.environment(2))
    assert ("the machine may be busy (load 3.0)" in capsys.readouterr().out) == told


def test_rows_are_told_as_they_come(capsys):
    rows = report.measure_all(
        ["a", "b"], lambda name: Row(name, "no way" if name == "b" else ""), lambda row: "fine"
    )
    assert [row.name for row in rows] == ["a", "b"]
    assert capsys.readouterr().err == "1/2 a: fine\n2/2 b: no way\n"


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("no way", 1)])
def test_a_row_without_numbers_exits_with_1_and_is_written(problem, code, tmp_path):
    path = tmp_path / "rows.json"
    rows = [Row("a"), Row("b", problem, float("inf"))]
    assert report.finish(str(path), {"threads": 2}, rows, means={"x": None}) == code
    content = json.loads(path.read_text())
    assert content["environment"] == {"threads": 2} and content["means"] == {"x": None}
    assert content["rows"][1] == {
        "name": "b", "problem": problem, "error": "inf", "right": not problem
    }  # fmt: skip

"""Table of the trials of a search, and tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io

from tests.tracking.records import RECORDS
from tvmopt.tracking.report.tables import as_csv, as_markdown, as_text
from tvmopt.tracking.report.trials import COLUMNS, narrow, table


def test_the_table_has_every_trial_that_says_something() -> None:
    cells = table(RECORDS, winner=6, finals=[(1, 0.7, 0.69, 0.71), (6, 0.75, 0.74, 0.76)])
    assert cells[0] == list(COLUMNS)
    assert {len(row) for row in cells} == {len(COLUMNS)}
    status = {row[0]: row[1] for row in cells[1:]}
    assert status == {
        "6": "winner", "5": "feasible", "1": "feasible", "2": "not feasible", "0": "baseline",
        "3": "FAILED (timeout)",
    }  # fmt: skip
    assert [row[0] for row in cells[1:4]] == ["6", "1", "5"]
    assert cells[2][cells[0].index("final 95% interval")] == "0.69 - 0.71"
    assert cells[-1][-1] == "it broke"
    column = cells[0].index("granularity")
    effort = cells[0].index("effort")
    tried = {row[effort]: row[column] for row in cells[1:]}
    assert tried == {
        "none": "subgraph", "default": "subgraph", "fast-20-operator": "operator",
        "fast-20": "subgraph", "metaschedule-64": "subgraph",
    }  # fmt: skip
    assert list(csv.reader(io.StringIO(as_csv(cells)))) == cells
    assert {len(row) for row in narrow(cells)} == {11}


def test_a_table_is_text_markdown_and_csv() -> None:
    cells = [["a", "long name"], ["1|2", "=x"]]
    assert as_text(cells) == "a    long name\n---  ---------\n1|2  =x"
    assert as_markdown(cells) == "| a | long name |\n| --- | --- |\n| 1\\|2 | =x |\n"
    assert as_csv(cells) == "a,long name\n1|2,'=x\n"

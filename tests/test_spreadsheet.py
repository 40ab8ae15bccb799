"""CSV cells that a spreadsheet would evaluate as formulas are escaped."""

import csv
import io

import pytest

from tvmopt.spreadsheet import as_text, write_csv


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_formula_becomes_a_text(start) -> None:
    assert as_text(start + 'HYPERLINK("x")') == "'" + start + 'HYPERLINK("x")'


@pytest.mark.parametrize("cell", ["-", "-1.5", "+3e4", "conv", "a=b", "", 7, -2.5, None, "-inf"])
def test_other_cells_stay(cell) -> None:
    assert as_text(cell) == cell


def test_what_is_written_is_read_again() -> None:
    file = io.StringIO()
    write_csv(file, ["name", "ms"], [["=1+1", -2], ['a,"b\n', "-3"]])
    assert list(csv.reader(io.StringIO(file.getvalue()))) == [
        ["name", "ms"],
        ["'=1+1", "-2"],
        ['a,"b\n', "-3"],
    ]

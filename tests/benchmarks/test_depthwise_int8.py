"""The benchmark of int8 depthwise convolutions: a row of its table, with the result checked."""

from __future__ import annotations

import sys

import pytest

from benchmarks import depthwise_int8


def test_a_row_names_layer_times_and_instruction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = depthwise_int8.DepthwiseShape("tiny", 10, 10, 64, 3, 1, 1)
    monkeypatch.setattr(depthwise_int8, "SHAPES", (shape,))
    monkeypatch.setattr(sys, "argv", ["depthwise_int8", "--threads", "1"])
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    depthwise_int8.main()
    *_, row = capsys.readouterr().out.splitlines()
    layer, window, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert layer == "tiny 10x10x64 3x3/1"
    assert float(window) > 0

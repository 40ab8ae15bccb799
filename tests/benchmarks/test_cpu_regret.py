"""Tests of ``benchmarks.cpu_regret``: the printed table, wrong results, the options."""

from __future__ import annotations

import json

import pytest

from benchmarks import cpu_regret, metaschedule_peer, peers, regret
from benchmarks.interleave import Timing
from benchmarks.operators import MatMul


@pytest.fixture(autouse=True)
def _little(monkeypatch):
    monkeypatch.setattr(peers, "set_threads", lambda threads: None)
    rows = [("matmul", MatMul(16, 24, 32)), ("matmul", MatMul(3, 5, 7))]
    monkeypatch.setattr(cpu_regret, "regret_operators", lambda: rows)


def _run(tmp_path, *more):
    file = tmp_path / "rows.json"
    code = cpu_regret.main(["--threads", "1", "--json", str(file), *more])
    return code, json.loads(file.read_text())


def test_one_run_prints_one_table(tmp_path, capsys):
    options = ("--only", "matmul_16x24x32", "--configs", "3", "--topk", "2")
    code, content = _run(tmp_path, *options)
    out = capsys.readouterr().out
    assert code == 0, out
    [row] = content["rows"]
    assert row["right"] and row["measured"] == 3 and row["tuning_s"] > 0
    assert min(row["top1_us"], row["tuned_us"]) >= row["best_us"] > 0
    assert set(row["configs"]) == {"best", "top-1", "tuned"}
    assert "| matmul_16x24x32 | matmul |" in out
    assert "top-2 regret" in out and "- all (1): top-1 " in out
    assert "MetaSchedule" not in out
    assert content["geometric_means"]["matmul"]["tuned"] >= 1


def test_wrong_configurations_exit_with_1_and_are_told(tmp_path, capsys, monkeypatch):
    def wrong(task, *_):
        return regret.RegretRow(
            task.name, task.kind, best_us=1.0, top1_us=1.0, tuned_us=1.0,
            failures={"WrongResultError: wrong result: off by #": 2},
        )  # fmt: skip

    monkeypatch.setattr(regret, "measure", wrong)
    code, content = _run(tmp_path)
    assert code == 1 and not content["rows"][0]["right"]
    assert "- matmul_3x5x7: 2 x WrongResultError" in capsys.readouterr().out


@pytest.mark.parametrize(("error", "code", "told"), [(0.0, 0, "1 of 1"), (0.1, 1, "0 of 0")])
def test_metaschedule_alone(error, code, told, tmp_path, capsys, monkeypatch):
    def compared(task, target, topk, seconds):
        timings = {
            name: Timing(ms, ms, ms, 9, 9) for name, ms in (("fast", 1.0), ("metaschedule", 2.0))
        }
        seconds = {"fast": 1.0, "metaschedule": 10.0}
        trials = {"fast": 2, "metaschedule": 20}
        return metaschedule_peer.PeerRow(task.name, task.kind, timings, seconds, trials, error)

    monkeypatch.setattr(metaschedule_peer, "compare", compared)
    options = ("--only", "matmul_3x5x7", "--configs", "0", "--metaschedule")
    found, content = _run(tmp_path, *options)
    out = capsys.readouterr().out
    assert found == code and len(content["rows"]) == 1
    assert "1000 (1000-1000) | 2000 (2000-2000)" in out
    assert f"tvmopt is faster on {told}" in out and "Regret" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--configs", "0"], "--configs must be at least 1 without --metaschedule, but got 0"),
        (["--only", "matmul_3x5x8"], "--only must name rows, but got 'matmul_3x5x8'"),
        (["--topk", "0"], "--topk must be at least 1, but got 0"),
        (["--dtype", "int8"], "--dtype int8 must come with --model"),
        (["--model", "absent.onnx"], "there is none at 'absent.onnx'"),
    ],
)
def test_bad_options_end_with_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cpu_regret.main(arguments)
    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert message in last

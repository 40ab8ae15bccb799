"""Tests of ``benchmarks.cpu_ops``: checked results, missing peers, the command line."""

from __future__ import annotations

import json
import math

import onnx
import pytest
from onnx import helper

from benchmarks import cpu_ops, peers, tuning_tasks
from benchmarks.operator_table import same_convolution
from tvmopt.tune import TuneResult

from .folded import graph

UNTUNED = TuneResult("fast", database_dir=None, tasks=(), trials=0, seconds=0.0, log=())


@pytest.fixture(autouse=True)
def _threads_stay(monkeypatch):
    monkeypatch.setattr(peers, "set_threads", lambda threads: None)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=(1, 1, 1, 1))
    model = graph([node], {"x": (1, 4, 6, 6)}, ["y"], {"w": (8, 4, 3, 3)})
    model.ir_version = 8
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save_model(model, path)
    return path


def _run(model_path, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--topk", "2", "--threads", "1", "--seconds", "0.2", "--json", str(file)]
    code = cpu_ops.main(["--model", str(model_path), *options])
    return code, json.loads(file.read_text())


def test_one_run_prints_one_table(model_path, tmp_path, capsys):
    code, content = _run(model_path, tmp_path)
    out = capsys.readouterr().out
    assert code == 0, out
    [row] = content["rows"]
    assert row["name"] == "conv3x3_4-8_6x6" and row["right"]
    assert row["config"].startswith("#") and row["failed"] == 0
    assert {"default", "top-1", "best"} <= set(row["timings"])
    assert row["mflop"] == pytest.approx(2 * 36 * 9 * 4 * 8 / 1e6)
    assert "| conv3x3_4-8_6x6 |" in out and "threads 1" in out
    assert "- conv (1): top-1 " in out


def test_a_wrong_result_exits_with_1_and_counts_for_no_mean(
    model_path, tmp_path, capsys, monkeypatch
):
    right = cpu_ops.compiled

    def wrong(lowered, target, path, inputs, schedule="default", **how):
        call = right(lowered, target, path, inputs, schedule=schedule, **how)
        return call if schedule == "none" else lambda: [call()[0] + 0.01]

    monkeypatch.setattr(cpu_ops, "compiled", wrong)
    monkeypatch.setattr(tuning_tasks, "tuned", lambda *_, **how: UNTUNED)
    code, content = _run(model_path, tmp_path)
    assert code == 1
    assert "WRONG" in capsys.readouterr().out
    assert not content["rows"][0]["right"] and content["geometric_means"] == {}


def test_tvms_default_has_no_winograd_and_ours_has(monkeypatch):
    """Our schedules use Winograd; TVM's own schedule would be slower with it."""
    built = {}

    def record(lowered, target, path, inputs, **how):
        names = [var.name_hint for var in lowered.get_global_vars()]
        built[path.name] = any("winograd" in name for name in names)
        if path.name == "best.so":
            raise RuntimeError("seen enough")

    monkeypatch.setattr(cpu_ops, "compiled", record)
    monkeypatch.setattr(tuning_tasks, "tuned", lambda *_, **how: UNTUNED)
    cpu_ops.measure("conv", same_convolution(32, 32, 24, 3), 1, 1, 0.1)
    assert built == {"default.so": False, "first.so": True, "best.so": True}


def test_without_pytorch_its_column_stays_empty(model_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers, "available", lambda name: False)
    monkeypatch.setattr(tuning_tasks, "tuned", lambda *_, **how: UNTUNED)
    code, content = _run(model_path, tmp_path)
    out = capsys.readouterr().out
    assert code == 0
    assert "torch is not installed, its column stays '-': pip install -e .[bench]" in out
    assert "openvino" not in out.split("\n")[1]
    assert not any(name.startswith("torch") for name in content["rows"][0]["timings"])


def test_an_operator_that_fails_has_a_row_that_says_so(model_path, tmp_path, capsys, monkeypatch):
    def fail(*_, **how):
        raise RuntimeError("no\nway")

    monkeypatch.setattr(tuning_tasks, "tuned", fail)
    code, content = _run(model_path, tmp_path)
    assert code == 1
    assert "FAILED: no way" in capsys.readouterr().out
    assert content["rows"][0]["problem"] == "no way"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "conv3x3_64-64_56x57"], "--only must name rows, but got 'conv3x3_64-64_56x57'"),
        (["--only", ","], "--only must name rows"),
        (["--threads", "0"], "--threads must be at least 1, but got 0"),
        (["--topk", "0"], "--topk must be at least 1, but got 0"),
        (["--model", "absent.onnx"], "there is none at 'absent.onnx'"),
    ],
)
def test_bad_options_end_with_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cpu_ops.main(arguments)
    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert message in last


def test_a_model_without_rows_ends_with_one_line(tmp_path, capsys):
    path = tmp_path / "relu.onnx"
    model = graph([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"])
    model.ir_version = 8
    onnx.save_model(model, path)
    with pytest.raises(SystemExit):
        cpu_ops.main(["--model", str(path)])
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "--model must hold a convolution or matmul" in last


def test_only_takes_kinds_and_suggests_names(capsys, monkeypatch):
    def unmeasured(kind, operator, *_):
        return cpu_ops.Row(operator.name, kind, 1.0, problem="not measured")

    monkeypatch.setattr(cpu_ops, "measure", unmeasured)
    assert cpu_ops.main(["--only", "matmul,softmax_12x128x128"]) == 1
    out = capsys.readouterr().out
    assert out.count("\n| matmul_") + out.count("\n| linear_") == 7
    assert "\n| softmax_12x128x128 " in out
    with pytest.raises(SystemExit):
        cpu_ops.main(["--only", "conv3x3_64_64_56x56"])
    assert "choose from conv3x3_64-64_56x56" in capsys.readouterr().err


def test_ratio_is_that_of_the_best_form():
    timing = {
        name: cpu_ops.Timing(ms, ms, ms, 9, 9)
        for name, ms in {"best": 2.0, "top-1": 4.0, "torch:plain": 6.0, "torch:fused": 3.0}.items()
    }
    row = cpu_ops.Row("x", "conv", 1.0, timing, error=1e-6)
    assert row.torch[0] == "torch:fused"
    assert row.ratio("best") == pytest.approx(1.5)
    assert row.eager == pytest.approx(3.0)  # of the unfused variant
    found = cpu_ops.means([row, cpu_ops.Row("y", "conv", 1.0)])["conv"]
    assert found["top-1"] == pytest.approx(0.75) and not math.isnan(found["best"])

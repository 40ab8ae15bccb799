"""The stages of a model in two sizes, tuned by measurement."""

from __future__ import annotations

import csv
import dataclasses

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import tvmopt
from tvmopt.config import BuildConfig, ConvertConfig, TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.runtime.sizes import ROWS, SizeDimension
from tvmopt.stages.build import build
from tvmopt.stages.convert import convert
from tvmopt.stages.module_files import PARAMS_FILE, REFERENCE_FILE
from tvmopt.stages.size_folders import read_dimensions, size_folders
from tvmopt.stages.tune import tune
from tvmopt.tune.database import RECORD_FILE


@pytest.fixture(scope="module")
def stages(make_model, tmp_path_factory):
    """Run the stages; return their folders and results by name."""
    folder = tmp_path_factory.mktemp("fast")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    shapes = {"x": ("float32", ["n", 64])}, {"y": ("float32", ["n", 48])}
    onnx.save(
        make_model(nodes, *shapes, {"w": np.ones((64, 48), np.float32)}), str(folder / "model.onnx")
    )
    converted, tuned, built = (folder / name for name in ("convert", "tune", "build"))
    for path in (converted, tuned, built):
        path.mkdir()
    target = resolve_target("host", 2).to_dict()

    def quiet(done: int, total: int, text: str) -> None:
        pass

    asked = ConvertConfig("n=4,16", target)
    results = {
        "convert": convert(asked, folder / "model.onnx", converted, quiet),
        "tune": tune(TuneConfig(target, strategy="fast", topk=2), converted, tuned, quiet),
        "build": build(BuildConfig("m", target), converted, tuned, "d", built, quiet),
    }
    return folder, results


def test_a_further_size_keeps_only_what_differs(stages) -> None:
    folder, results = stages
    largest, further = size_folders(folder / "convert")
    for name in (PARAMS_FILE, REFERENCE_FILE):
        assert (largest / name).is_file()
        assert not (further / name).exists()
    place = ((0, 0),), ((0, 0),)
    assert read_dimensions(largest) == (SizeDimension("n", *place, ROWS),)
    assert results["convert"].metrics["sizes"] == 2
    lines = results["convert"].changed
    assert "2 sizes in one library" in lines
    assert "n: 4, 16; calls of any number of rows are divided among them" in lines


def test_each_size_has_records(stages) -> None:
    folder, results = stages
    largest, further = size_folders(folder / "tune")
    assert further == folder / "tune" / "sizes" / "1"
    own, both = (
        (one / "database" / RECORD_FILE).read_text().splitlines() for one in (largest, further)
    )
    assert len(own) == 1
    assert len(both) == 2  # the record of the largest, too
    assert results["tune"].metrics["tune_trials"] == 3  # top-2, then top-1
    assert "1 further sizes: 3 candidates measured for all" in results["tune"].changed[-1]


def test_the_library_has_the_schedules_of_the_records(stages) -> None:
    folder, _ = stages
    with (folder / "build" / "schedules.csv").open(newline="") as file:
        rows = [(row["schedule"], row["record"]) for row in csv.DictReader(file)]
    assert rows == [("database", "subgraph")] * 2


def test_each_size_was_timed(stages) -> None:
    folder, _ = stages
    metadata = tvmopt.load(folder / "build" / "bundle").metadata
    with (folder / "build" / "sizes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["x"] for row in rows] == ["16x64", "4x64"]
    assert [float(row["milliseconds"]) for row in rows] == [
        size.milliseconds for size in metadata.sizes
    ]
    assert all(size.milliseconds > 0 for size in metadata.sizes)


def test_the_baseline_can_have_the_largest_size_only(stages, tmp_path) -> None:
    folder, _ = stages
    config = BuildConfig("m", resolve_target("host", 2).to_dict(), "none")
    config = dataclasses.replace(config, all_sizes=False)
    build(config, folder / "convert", None, "d", tmp_path, lambda *_: None)
    metadata = tvmopt.load(tmp_path / "bundle").metadata
    assert (metadata.sizes, metadata.dimensions) == ((), ())

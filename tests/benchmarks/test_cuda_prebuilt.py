"""Tests of ``benchmarks.cuda_prebuilt`` without a GPU: rows, kernels that are built, the table."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks.cuda_prebuilt import LISTS, cells, main, rows, varied
from benchmarks.cuda_rows import row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allows_tf32


def test_every_row_of_the_lists_exists() -> None:
    for name in (*LISTS["tf32"], *LISTS["float32"]):
        func = row(name).func
        assert all(str(p.dtype) == "float32" for p in func.params)
        assert allows_tf32(func) == row(name).allow_tf32 == name.endswith("tf32")


def test_names_of_lists_stand_for_their_rows() -> None:
    assert rows("add-64-64-float32,tf32") == ["add-64-64-float32", *LISTS["tf32"]]


def test_an_unknown_row_is_refused(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["build", "--rows", "matmul-3"])
    assert end.value.code == 2 and "a row must be named like" in capsys.readouterr().err


def test_kernels_are_built_without_a_gpu(tmp_path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    name = "matmul_nt-256-256-256-tf32"
    assert main(["build", "--rows", name, "--topk", "1", "--out", str(tmp_path)]) == 0
    [entry] = json.loads((tmp_path / "index.json").read_text())
    assert entry["row"] == name and (tmp_path / entry["library"]).stat().st_size > 0


def test_a_variant_changes_the_fields_it_names() -> None:
    ranked = policy_of(row("matmul_nt-256-256-256-float32").func, GPUS["nvidia-h200"]).ranked
    config = next(one.hint for one in ranked if one.hint.template == "simt_matmul")
    other = varied(config, "tile=[64,128];stages=3;async_copy=true")
    assert (other.tile, other.stages, other.async_copy) == ((64, 128), 3, True)
    assert other.k_block == config.k_block
    assert varied(config, "cluster_m=2") is None


def test_the_table_compares_the_top_1_and_the_best_with_pytorch() -> None:
    libraries = {"ours0": {"config": "first"}, "ours1": {"config": "second"}}
    found = {
        "ms": {"torch": 2.0, "torch float32": 8.0, "ours0": 4.0, "ours1": 1.0},
        "errors": {"torch": 1e-4, "ours0": 2e-3, "ours1": 1e-3},
        "problems": {},
    }
    line = cells("row", libraries, found)
    assert line == ["row", "8", "2", "4", "1", "0.500", "2.000", "2.0e-03", "1.0e-04", "second"]
    assert cells("row", libraries, {"problems": {"row": "died"}})[4:7] == ["-", "-", "-"]

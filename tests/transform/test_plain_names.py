"""Input names become distinct C identifiers; the rest of the module stays."""

from __future__ import annotations

import shutil

import pytest
import tvm
from onnx import helper
from tvm import relax

from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.frontend.importer import import_onnx
from tvmopt.transform.lower import lower
from tvmopt.transform.plain_names import PlainNames, _plain


@pytest.fixture
def module(make_model):
    model = make_model(
        [helper.make_node("Add", ["gpu_0/x:0", "gpu.0/x:0"], ["s"], name="add"),
         helper.make_node("Relu", ["s"], ["1.y"], name="relu")],
        {"gpu_0/x:0": ("float32", [2, 8]), "gpu.0/x:0": ("float32", [2, 8])},
        {"1.y": ("float32", [2, 8])},
    )  # fmt: skip
    return import_onnx(model)


def renamed(mod: tvm.IRModule) -> tvm.IRModule:
    return tvm.transform.Sequential([PlainNames()])(mod)


def test_names_become_identifiers_and_stay_apart(module) -> None:
    assert [p.name for p in renamed(module)["main"].params] == ["gpu_0_x_0", "gpu_0_x_0_1"]


@pytest.mark.parametrize(("name", "plain"), [("1.y", "_1_y"), ("", "_"), ("x", "x"), ("é", "_")])
def test_one_name(name: str, plain: str) -> None:
    assert _plain(name, set()) == plain


def test_only_names_change(module) -> None:
    again = renamed(module)
    relax.analysis.well_formed(again)
    tvm.ir.assert_structural_equal(again["main"], module["main"])
    assert renamed(again)["main"].same_as(again["main"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_kernels_of_such_inputs_compile(module, tmp_path) -> None:
    target = resolve_target("nvidia-a100")
    built = build_library(lower(module, target.to_tvm()), target, tmp_path / "m.so")
    assert built.path.is_file()
    assert all(source.startswith("default:") for source in built.sources.values())

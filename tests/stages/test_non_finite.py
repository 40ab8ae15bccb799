"""NaN, infinities and huge values: networks answer as ONNX Runtime, and conversion says so."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from benchmarks import zoo
from tvmopt.arch.target import resolve_target
from tvmopt.build import build_library
from tvmopt.compare import same_non_finite
from tvmopt.config import ConvertConfig
from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.reference import Reference, input_specs
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.stages.check import compile_for_check
from tvmopt.stages.convert import convert
from tvmopt.stages.non_finite import AGREES, NON_FINITE_TAG, compare_non_finite
from tvmopt.transform.lower import lower

_DIGITS = Path(__file__).parents[2] / "examples" / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def digits():
    """The bundled network prepared, its reference, and its module."""
    prepared = prepare(load_onnx(_DIGITS), parse_input_shapes("image:1x1x8x8"))
    module = import_onnx(prepared.model, layer_table(prepared.model))
    return Reference(prepared.reference), module


@pytest.fixture(scope="module", params=["none", "default"])
def answer(request, digits, tmp_path_factory):
    """The bundled network, compiled with the schedules of a strategy."""
    reference, module = digits
    target = resolve_target("host", 1)
    path = tmp_path_factory.mktemp("library") / "digits.so"
    build_library(lower(module, target.to_tvm()), target, path, schedule=request.param)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    return lambda image: (
        machine["main"](tvm.runtime.tensor(image)).numpy(), reference({"image": image})[0]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-42])
@pytest.mark.parametrize("everywhere", [True, False])
def test_extreme_images_get_the_answer_of_onnx_runtime(answer, value, everywhere) -> None:
    image = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    image[..., :, :] = np.float32(value) if everywhere else image
    image[0, 0, 3, 3] = value
    got, wanted = answer(image)
    assert same_non_finite(got, wanted)
    if np.isnan(value):
        assert np.isnan(got).all()


@pytest.fixture
def converted(tmp_path, monkeypatch):
    """Convert a model; gives the stage's result."""
    monkeypatch.setenv("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "1"))

    def run(model: Path, shapes: str = "", dtype: str = "float32"):
        (tmp_path / "out").mkdir()
        config = ConvertConfig(shapes, resolve_target("host", 1).to_dict(), dtype=dtype)
        return convert(config, model, tmp_path / "out", lambda *_: None)

    return run


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_conversion_records_that_nan_is_where_the_reference_has_it(converted, dtype) -> None:
    result = converted(_DIGITS, "image:1x1x8x8", dtype)
    assert result.tags[NON_FINITE_TAG] == AGREES
    assert any("NaN and infinities are where ONNX Runtime has them" in x for x in result.changed)


def test_conversion_records_where_nan_differs(converted, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tvmopt.transform.cpu_pipeline.keep_nan", lambda module: module)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]  # without the pass, of NaN it is 0
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16]) for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "relu", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, str(tmp_path / "relu.onnx"))
    result = converted(tmp_path / "relu.onnx")
    assert result.tags[NON_FINITE_TAG].startswith("differs: NaN everywhere (output 'y')")
    assert result.changed[-1].startswith("non-finite: not as ONNX Runtime on NaN everywhere")


def test_integers_indices_and_quantised_models_are_not_compared() -> None:
    def never(*_args):
        raise AssertionError

    specs = [TensorSpec("image", (1, 4), "float32")]
    how = {"dtype": "float32", "quantised": False, "kind": "normal"}
    ids = [TensorSpec("ids", (1, 4), "int64")]
    assert compare_non_finite(never, never, ids, ["y"], **how) is None
    assert compare_non_finite(never, never, specs, ["y"], **how | {"kind": "binary"}) is None
    found = compare_non_finite(never, never, specs, ["y"], **how | {"quantised": True})
    assert found is not None and "NaN" in found.line


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resnet18", "resnet50", "mobilenet_v2", "mlp", "bert_layer", "light_squeezenet",
        "light_shufflenet", "light_densenet121", "light_inception_v1",
    ],
)  # fmt: skip
def test_networks_of_the_zoo_answer_nan_as_onnx_runtime(name) -> None:
    entry = zoo.entry(name)
    prepared = prepare(load_onnx(zoo.path(name)), parse_input_shapes(entry.input_shapes))
    reference = Reference(prepared.reference)
    specs = input_specs(prepared.reference)
    module = import_onnx(prepared.model, layer_table(prepared.model))
    run = compile_for_check(module, resolve_target("host", 1))
    found = compare_non_finite(
        run, reference, specs, reference.output_names, dtype="float32", quantised=False,
        kind="normal",
    )  # fmt: skip
    assert found is not None
    # Where a sum overflows depends on its order: of 1e38 these two differ, and of nothing else.
    overflows = name in ("light_densenet121", "light_inception_v1")
    assert found.tag == AGREES or (overflows and found.tag.startswith("differs: 1e38 everywhere"))
    assert ";" not in found.tag

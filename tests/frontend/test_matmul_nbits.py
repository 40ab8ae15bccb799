"""MatMulNBits beside ONNX Runtime, on a CPU and, for a few rows, by the int4 kernel of a GPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tests.emulator.cuda import run
from tests.kernels.cuda.serial import H200
from tvmopt.config import ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.stages.check import compile_for_check
from tvmopt.stages.convert import convert
from tvmopt.stages.module_files import read_module
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower
from tvmopt.transform.precision.anchor_call import constant_data


def _model(
    rows: int = 1,
    depth: int = 96,
    count: int = 40,
    block: int = 32,
    dtype: str = "float32",
    zero_points: np.ndarray | None = None,
    bias: bool = False,
    bits: int = 4,
    **attributes: int,
) -> onnx.ModelProto:
    rng = np.random.default_rng([rows, depth, count, block])
    blocks = -(-depth // block)
    constants = {
        "weight": rng.integers(0, 256, (count, blocks, block * bits // 8), dtype=np.uint8),
        "scales": (2.0 ** rng.integers(-2 - bits, 2 - bits, (count, blocks))).astype(dtype),
    }
    names = ["x", "weight", "scales", "", "", ""]
    if zero_points is not None:
        constants["zeros"], names[3] = zero_points, "zeros"
    if bias:
        constants["bias"], names[5] = rng.standard_normal(count).astype(dtype), "bias"
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "MatMulNBits", names, ["y"], "dense", domain="com.microsoft",
        **{"K": depth, "N": count, "bits": bits, "block_size": block, **attributes},
    )  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", kind, [1, rows, depth])],
        [helper.make_tensor_value_info("y", kind, [1, rows, count])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _inputs(model: onnx.ModelProto) -> np.ndarray:
    tensor = model.graph.input[0].type.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def _expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def _varied(count: int, blocks: int, bits: int = 4) -> np.ndarray:
    shape = (count, -(-blocks * bits // 8))
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def _float_zeros(count: int, blocks: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(5, 10, (count, blocks)).astype(np.float32)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"block": 16, "dtype": "float16"},
        {"depth": 256, "block": 256, "bias": True},
        {"depth": 100},  # the last block is not full
        {"zero_points": _varied(40, 3)},
        {"zero_points": np.full((40, 2), 0x55, np.uint8)},
        {"rows": 12, "block": 64, "depth": 128},
        {"bits": 8},
        {"bits": 8, "depth": 100, "block": 16, "bias": True},
        {"bits": 8, "dtype": "float16", "zero_points": _varied(40, 3, 8)},
        {"zero_points": np.full((40, 3), 7.5, np.float32)},
        {"zero_points": _float_zeros(40, 3)},
    ],
    ids=lambda given: "-".join(given) or "plain",
)
def test_a_cpu_computes_what_onnx_runtime_does(given: dict) -> None:
    model = _model(**given)
    x = _inputs(model)
    converted = convert_module(import_onnx(prepare(model, {}).model))
    (got,) = compile_for_check(converted.mod, resolve_target("host", 1))([x])
    np.testing.assert_allclose(got, _expected(model, x), rtol=1e-3, atol=1e-5)


def test_a_layer_is_counted_and_skipped_by_name() -> None:
    prepared = prepare(_model(), {})
    [layer] = layer_table(prepared.model)
    assert (layer.name, layer.op, layer.flops) == ("dense", "MatMulNBits", 2 * 96 * 40)
    kept = convert_module(import_onnx(prepared.model), dtype="float16", skip_layers=[0]).mod
    assert "float16" not in kept.script()


def test_weights_stay_packed_in_the_converted_module(tmp_path) -> None:
    model = _model(depth=2048, count=64, block=128)
    onnx.save(model, str(tmp_path / "model.onnx"))
    config = ConvertConfig("", resolve_target("host", 1).to_dict())
    result = convert(config, tmp_path / "model.onnx", tmp_path, lambda *_: None)
    assert result.metrics["params_bytes"] < 2048 * 64
    x = _inputs(model)
    (got,) = compile_for_check(read_module(tmp_path), resolve_target("host", 1))([x])
    np.testing.assert_allclose(got, _expected(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("given", "dtype", "template"),
    [
        ({"depth": 512, "block": 128, "dtype": "float16", "bias": True}, "float32", "gpu_int4"),
        ({"depth": 512, "block": 32, "rows": 3}, "float16", "gpu_int4"),
        ({"depth": 256, "block": 16}, "float16", "gpu_gemv"),  # scales too fine for its lanes
        ({"depth": 256, "block": 64}, "float32", "gpu_gemv"),
        ({"depth": 512, "block": 64, "zero_points": _varied(40, 8)}, "float16", "gpu_gemv"),
        ({"bits": 8, "depth": 512, "block": 128, "bias": True}, "float16", "gpu_gemv"),
        (
            {"bits": 8, "depth": 512, "rows": 2, "zero_points": _varied(40, 16, 8)},
            "float16",
            "gpu_gemv",
        ),
    ],
)
def test_a_gpu_unpacks_in_its_kernel(given: dict, dtype: str, template: str) -> None:
    model = _model(**given)
    x = _inputs(model)
    converted = convert_module(import_onnx(prepare(model, {}).model), dtype=dtype)
    lowered = lower(converted.mod, resolve_target("nvidia-h200").to_tvm())
    call = lowered["main"].body.blocks[0].bindings[-1].value
    func = lowered[call.args[0]]
    params = [constant_data(arg) for arg in call.args[1].fields]
    inputs = [x.astype(func.params[0].dtype) if p is None else p.numpy() for p in params]
    hint = next(r.hint for r in DefaultPolicy(func, H200).ranked if r.hint.template == template)
    empty = np.full([int(e) for e in func.params[-1].shape], np.nan, func.params[-1].dtype)
    [got] = run(emit_kernel(func, hint), inputs, [empty], H200)
    np.testing.assert_allclose(got, _expected(model, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bits": 2, "block": 32, "depth": 96}, "bits must be 4 or 8, but got 2"),
        ({"zero_points": np.ones((40, 3), np.int8)}, "zero points must hold 80 uint8 values"),
    ],
)
def test_others_are_refused_in_one_line(given: dict, message: str) -> None:
    model = _model(**given)
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        import_onnx(onnx.shape_inference.infer_shapes(model))
    assert "MatMulNBits x1 at dense" in str(caught.value)
    assert "\n" not in str(caught.value)

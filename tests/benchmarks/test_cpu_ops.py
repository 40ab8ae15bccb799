"""Single operators: shapes, rows of a model, right and wrong results, the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from benchmarks import cpu_ops, peers
from benchmarks.cpu_ops import Convolution, MatMul
from benchmarks.zoo_topologies import mobilenet_v2, resnet


@pytest.fixture(autouse=True)
def _threads_stay(monkeypatch):
    monkeypatch.setattr(peers, "set_threads", lambda threads: None)


def graph(nodes, inputs, outputs, weights=()):
    """A folded model as the frontend leaves it: shapes inferred."""
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in specs.items()]
        for specs in (inputs, dict.fromkeys(outputs))
    ]
    constants = [
        onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in dict(weights).items()
    ]
    made = helper.make_graph(nodes, "g", *values, constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_names_are_unique():
    names = [operator.name for _, operator in cpu_ops.built_in()]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)
    assert {kind for kind, _ in cpu_ops.built_in()} <= set(cpu_ops.KINDS)


def _folded_shapes(model, batch=1):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = batch
    return onnx.shape_inference.infer_shapes(model)


def test_resnet_rows_are_those_of_the_model():
    rows, left = cpu_ops.model_operators(_folded_shapes(resnet((3, 4, 6, 3), bottleneck=True)))
    assert not left
    found = {op for kind, op in rows if kind == "conv" and op.kernel != (7, 7)}
    assert found == set(cpu_ops.resnet50_convolutions())
    built_in = {op for _, op in cpu_ops.built_in()}
    # With the stem; the classifier has a name of its own shape, too.
    assert {op for _, op in rows} <= built_in


def test_mobilenet_rows_are_those_of_the_model():
    rows, _ = cpu_ops.model_operators(_folded_shapes(mobilenet_v2()))
    found = {op for _, op in rows if isinstance(op, Convolution) and op.channels != 3}
    assert found == set(cpu_ops.mobilenet_v2_convolutions())
    assert {op for kind, op in rows if kind == "depthwise"} == {op for op in found if op.depthwise}


small = st.integers(1, 3)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_convolution_of_a_node_has_onnx_shapes(data, transposed):
    pair = st.tuples(small, small)
    kernel, strides = data.draw(pair), data.draw(pair)
    groups, dilations = (1, (1, 1)) if transposed else (data.draw(small), data.draw(pair))
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = data.draw(st.tuples(st.integers(5, 12), st.integers(5, 12)))
    channels, filters = 2 * groups, 3 * groups
    weight = (channels, filters // groups) if transposed else (filters, channels // groups)
    node = helper.make_node(
        "ConvTranspose" if transposed else "Conv", ["x", "w"], ["y"], strides=strides, pads=pads,
        dilations=dilations, group=groups, kernel_shape=kernel,
    )  # fmt: skip
    wanted = Convolution(
        channels, filters, size, kernel, strides, pads, dilations, groups, transposed, 2
    )
    assume(min(wanted.out_size) > 0)
    inputs = {"x": (2, channels, *size)}
    model = graph([node], inputs, ["y"], {"w": (*weight, *kernel)})
    [(_, found)], left = cpu_ops.model_operators(model)
    assert found == wanted and not left
    dims = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == [2, filters, *found.out_size]


@pytest.mark.parametrize(
    ("auto_pad", "pads"), [("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0))]
)
def test_auto_pad_is_resolved(auto_pad, pads):
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=(2, 2), auto_pad=auto_pad)
    model = graph([node], {"x": (1, 3, 8, 8)}, ["y"], {"w": (4, 3, 3, 3)})
    [(_, found)], _ = cpu_ops.model_operators(model)
    assert found.pads == pads
    assert found.out_size == (4, 4)


def test_a_convolution_over_a_line_is_one_over_an_image():
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=(2, 1), strides=(3,))
    model = graph([node], {"x": (1, 3, 20)}, ["y"], {"w": (4, 3, 5)})
    [(_, found)], _ = cpu_ops.model_operators(model)
    assert found == Convolution(3, 4, (1, 20), (1, 5), (1, 3), (0, 2, 0, 1))
    assert found.out_size == (1, 7)
    assert found.flops == 2 * 7 * 5 * 3 * 4


def test_matrix_products_of_a_model():
    nodes = [
        helper.make_node("Gemm", ["a", "w", "c"], ["g"], transB=1),
        helper.make_node("MatMul", ["h", "v"], ["m"]),
        helper.make_node("MatMul", ["h", "k"], ["n"]),
        helper.make_node("MatMul", ["h", "v"], ["again"]),
    ]
    inputs = {"a": (4, 8), "h": (2, 3, 5, 7), "k": (2, 3, 7, 6)}
    weights = {"w": (10, 8), "c": (10,), "v": (7, 9)}
    rows, left = cpu_ops.model_operators(graph(nodes, inputs, ["g", "m", "n", "again"], weights))
    assert [op for _, op in rows] == [
        MatMul(4, 8, 10, bias=True),
        MatMul(30, 7, 9),
        MatMul(5, 7, 6, batch=6, constant=False),
    ]
    assert not left


def test_what_has_no_row_is_told():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="deep"),
        helper.make_node("ConvTranspose", ["a", "v"], ["b"], name="up", group=2),
    ]
    inputs = {"x": (1, 2, 5, 5, 5), "a": (1, 4, 6, 6)}
    weights = {"w": (3, 2, 1, 1, 1), "v": (4, 1, 2, 2)}
    rows, left = cpu_ops.model_operators(graph(nodes, inputs, ["y", "b"], weights))
    assert not rows
    assert left[0] == "Conv deep: no row, it has 3 spatial axes"
    assert "no groups" in left[1]


AWKWARD = (
    Convolution(5, 7, (9, 11), (3, 2), (2, 1), (0, 1, 1, 2)),
    Convolution(6, 6, (8, 8), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), groups=6),
    Convolution(6, 4, (7, 7), (3, 3), pads=(1, 1, 1, 1), groups=2, batch=2),
    Convolution(5, 3, (6, 7), (4, 3), (2, 2), (1, 0, 2, 1), transposed=True),
    MatMul(3, 5, 7, bias=True),
    MatMul(3, 5, 7, batch=2, constant=False),
    *cpu_ops._PLAIN[2:],
)


@pytest.mark.parametrize("operator", AWKWARD, ids=lambda op: op.name)
def test_ours_equals_every_form_of_pytorch(operator, tmp_path):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra")
    from tvmopt.arch.target import resolve_target
    from tvmopt.transform.lower import lower

    target = resolve_target("host", 1)
    with peers.inference_mode():
        problem = operator.problem()
        lowered = lower(cpu_ops.relax_module(problem), target.to_tvm())
        call = cpu_ops.compiled(lowered, target, tmp_path / "f.so", problem.inputs)
        ours = problem.restore(call().numpy())
        forms = problem.torch()
        # What is all zero or all the same would equal anything.
        assert np.std(ours) > 0.05
        assert forms
        for form in forms.values():
            np.testing.assert_allclose(ours, peers.dense_array(form()), rtol=1e-4, atol=1e-5)


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

    def wrong(lowered, target, path, inputs, schedule="default"):
        call = right(lowered, target, path, inputs, schedule)

        class Off:
            def numpy(self):
                return call().numpy() + 0.01

        return call if schedule == "none" else Off

    monkeypatch.setattr(cpu_ops, "compiled", wrong)
    monkeypatch.setattr(cpu_ops, "tune", lambda lowered, target, topk: (lowered, "", 0))
    code, content = _run(model_path, tmp_path)
    assert code == 1
    assert "WRONG" in capsys.readouterr().out
    assert not content["rows"][0]["right"] and content["geometric_means"] == {}


def test_without_pytorch_its_column_stays_empty(model_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(peers, "available", lambda name: False)
    monkeypatch.setattr(cpu_ops, "tune", lambda lowered, target, topk: (lowered, "", 0))
    code, content = _run(model_path, tmp_path)
    out = capsys.readouterr().out
    assert code == 0
    assert "torch is not installed, its column stays '-': pip install -e .[bench]" in out
    assert "openvino" not in out.split("\n")[1]
    assert not any(name.startswith("torch") for name in content["rows"][0]["timings"])


def test_an_operator_that_fails_has_a_row_that_says_so(model_path, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nway")

    monkeypatch.setattr(cpu_ops, "tune", fail)
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
    assert "--model must hold a convolution or matrix product" in last


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
    found = cpu_ops.means([row, cpu_ops.Row("y", "conv", 1.0)])["conv"]
    assert found["top-1"] == pytest.approx(0.75) and not math.isnan(found["best"])

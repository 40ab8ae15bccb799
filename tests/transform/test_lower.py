"""Lowering leaves only calls of TensorIR functions, and reports operators that remain."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, prepare
from tvmopt.transform import lower as lower_module
from tvmopt.transform.lower import lower, remaining_operators

op = relax.op


@pytest.fixture(scope="module")
def target():
    return resolve_target("host", 2).to_tvm()


def _called(mod):
    names = []

    def visit(expr):
        if isinstance(expr, relax.Call):
            names.append(expr.op.name if isinstance(expr.op, tvm.ir.Op) else str(expr.op))

    relax.analysis.post_order_visit(mod["main"], visit)
    return names


def test_only_calls_of_tensor_ir_are_left(conv_model, target):
    mod = lower(import_onnx(prepare(conv_model, {}).model), target)
    assert set(_called(mod)) == {"relax.call_tir"}
    kinds = {type(function) for _, function in mod.functions_items()}
    assert kinds == {relax.Function, tvm.tirx.PrimFunc}
    assert remaining_operators(mod) == {}


def test_neighbours_are_fused(conv_model, target):
    mod = lower(import_onnx(prepare(conv_model, {}).model), target)
    names = [var.name_hint for var in mod.get_global_vars()]
    assert any(name.startswith("fused_conv2d") and "relu" in name for name in names)
    assert len(_called(mod)) < 5


def test_same_module_lowers_to_the_same_functions(conv_model, target):
    first, second = (lower(import_onnx(prepare(conv_model, {}).model), target) for _ in "ab")
    tvm.ir.assert_structural_equal(first, second)


def test_argument_is_not_changed(conv_model, target):
    mod = import_onnx(prepare(conv_model, {}).model)
    before = tvm.ir.save_json(mod)
    lower(mod, target)
    assert tvm.ir.save_json(mod) == before


def test_equal_subexpressions_are_computed_once(relax_main, target):
    def body(emit, x):
        return emit(op.add(emit(op.matmul(x, x)), emit(op.matmul(x, x))))

    mod = lower(relax_main(body, x=((8, 8), "float32")), target)
    assert len(_called(mod)) == 1


def test_operators_left_over_are_counted(relax_main):
    def body(emit, x):
        return emit(op.nn.relu(emit(op.matmul(emit(op.matmul(x, x)), x))))

    mod = relax_main(body, x=((8, 8), "float32"))
    assert remaining_operators(mod) == {"relax.matmul": 2, "relax.nn.relu": 1}


def test_reshape_needs_no_tensor_ir(relax_main):
    mod = relax_main(lambda emit, x: emit(op.reshape(x, (16,))), x=((4, 4), "float32"))
    assert remaining_operators(mod) == {}


def test_leftover_operators_are_refused_by_name(relax_main, target):
    def grouped(emit, x):
        weight = relax.const(np.ones((3, 3, 4, 2), np.float32))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return emit(op.nn.conv2d_transpose(x, weight, groups=2, **layouts))

    mod = relax_main(grouped, x=((1, 8, 8, 4), "float32"))
    match = r"did not: relax\.nn\.conv2d_transpose x1; replace"
    with pytest.raises(UnsupportedOperatorError, match=match):
        lower(mod, target)


def test_a_missing_phase_is_noticed(relax_main, target, monkeypatch):
    phases = lower_module.lower_passes()
    kept = [p for p in phases if p.info.name != "LegalizeOps"]
    assert len(kept) == len(phases) - 1
    monkeypatch.setattr(lower_module, "lower_passes", lambda *_: kept)
    mod = relax_main(lambda emit, x: emit(op.exp(x)), x=((4,), "float32"))
    with pytest.raises(UnsupportedOperatorError, match=r"relax\.exp x1"):
        lower(mod, target)


def test_kernels_for_cpus_are_refused_for_a_gpu(make_model):
    node = onnx.helper.make_node("RoiAlign", ["x", "rois", "image"], ["y"])
    inputs = {
        "x": ("float32", [1, 2, 8, 8]), "rois": ("float32", [2, 4]), "image": ("int64", [2]),
    }  # fmt: skip
    model = make_model([node], inputs, {"y": ("float32", None)}, {})
    module = import_onnx(prepare(model, {}).model)
    gpu = resolve_target("nvidia-h200", 1).to_tvm()
    with pytest.raises(UnsupportedOperatorError, match="CPUs only: roi_align; choose a CPU"):
        lower(module, gpu)


def test_the_branches_of_an_if_are_fused(make_model):
    node, declared = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    y = declared("y", onnx.TensorProto.FLOAT, [2, 3])
    nodes = [
        node("Mul", ["x", "x"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Tanh", ["b"], ["y"]),
    ]  # fmt: skip
    branch = onnx.helper.make_graph(nodes, "then", [], [y])
    other = onnx.helper.make_graph([node("Neg", ["x"], ["y"])], "else", [], [y])
    choice = node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    inputs = {"x": ("float32", [2, 3]), "c": ("bool", [])}
    model = make_model([choice], inputs, {"y": ("float32", [2, 3])}, {})
    lowered = lower(import_onnx(model), resolve_target("host", 1).to_tvm())
    names = sorted(var.name_hint for var, _ in lowered.functions_items())
    assert names == ["fused_multiply_add_tir_tanh1", "main", "tir_negative1"]

"""Tests of the ONNX importer, and of its report on unsupported nodes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import support
from tvmopt.frontend.importer import import_onnx, quiet_from_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.frontend.support import Unsupported, describe, failing_nodes, unknown_operators

FLOAT = onnx.TensorProto.FLOAT


def _refusal(model):
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(model)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_weights_become_constants_and_inputs_stay(conv_model, capfd):
    mod = import_onnx(prepare(conv_model, {}).model)
    assert isinstance(mod, tvm.IRModule)
    assert [param.name for param in mod["main"].params] == ["x"]
    assert isinstance(mod["main"], relax.Function)
    assert capfd.readouterr().out == ""


@pytest.mark.filterwarnings("error")
def test_nothing_is_printed_of_names_and_of_gathers(make_model, capfd):
    model = make_model(
        [helper.make_node("Gather", ["a/table", "b/ids"], ["y"], name="gather")],
        {"a/table": ("float32", [5, 3]), "b/ids": ("int64", [2])},
        {"y": ("float32", [2, 3])},
    )
    relax.transform.LegalizeOps()(import_onnx(prepare(model, {}).model))
    assert capfd.readouterr() == ("", "")


def test_all_unknown_operators_are_listed_at_once(make_model):
    model = make_model(
        [
            helper.make_node("RandomNormalLike", ["x"], ["r"], name="noise"),
            helper.make_node("Relu", ["r"], ["a"], name="fine"),
            helper.make_node("RandomNormalLike", ["a"], ["b"], name="more_noise"),
            helper.make_node("RandomUniformLike", ["b"], ["y"], name="more"),
        ],
        {"x": ("float32", [2, 2])},
        {"y": ("float32", [2, 2])},
    )
    message = _refusal(prepare(model, {}).model)
    assert "2 operator type(s)" in message
    assert "RandomUniformLike x1 at more (no converter)" in message
    assert "RandomNormalLike x2 at noise, more_noise (no converter)" in message
    assert "Relu" not in message


def _branch(name, op):
    return helper.make_graph(
        [helper.make_node(op, ["x"], [f"{name}_out"], name=f"{name}_node")],
        name,
        [],
        [helper.make_tensor_value_info(f"{name}_out", FLOAT, [2])],
    )


def test_unknown_operator_inside_a_branch_of_an_if(make_model):
    model = make_model(
        [
            helper.make_node(
                "If", ["c"], ["y"], name="choice",
                then_branch=_branch("yes", "Relu"), else_branch=_branch("no", "Bernoulli"),
            )
        ],
        {"c": ("bool", []), "x": ("float32", [2])},
        {"y": ("float32", [2])},
    )  # fmt: skip
    assert unknown_operators(model) == [Unsupported("Bernoulli", "no_node", "no converter")]
    assert "Bernoulli x1 at no_node" in _refusal(model)


def test_custom_domain(make_model):
    model = make_model(
        [
            helper.make_node("Fancy", ["x"], ["h"], name="plugin", domain="com.acme"),
            helper.make_node("Relu", ["h"], ["y"], name="relu"),
        ],
        {"x": ("float32", [2])},
        {"y": ("float32", [2])},
        domains=["com.acme"],
    )
    assert "com.acme.Fancy x1 at plugin (domain)" in _refusal(model)


def test_unknown_and_failing_nodes_are_reported_together(make_model):
    model = make_model(
        [
            helper.make_node("Bernoulli", ["x"], ["h"], name="coin"),
            helper.make_node("Pad", ["h", "pads"], ["y"], name="dynamic_pad"),
        ],
        {"x": ("float32", [2]), "pads": ("int64", [2])},
        {"y": ("float32", [4])},
    )
    model.graph.value_info.append(helper.make_tensor_value_info("h", FLOAT, [2]))
    message = _refusal(model)
    assert "Bernoulli x1 at coin (no converter)" in message
    assert "Pad x1 at dynamic_pad" in message


def test_failure_of_a_converter_names_its_node_and_reason(make_model):
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["h"], name="fine"),
            helper.make_node("Pad", ["h", "pads"], ["y"], name="dynamic_pad"),
        ],
        {"x": ("float32", [2]), "pads": ("int64", [2])},
        {"y": ("float32", None)},
    )
    message = _refusal(prepare(model, {}).model)
    assert "1 operator type(s)" in message
    assert "Pad x1 at dynamic_pad (" in message
    assert "fine" not in message
    assert "replace them in the model" in message


def test_failure_of_the_whole_graph_is_reported_without_a_node(conv_model, monkeypatch):
    def fail(model, indices=None):
        raise ValueError("first line\nthe cause")

    monkeypatch.setattr("tvmopt.frontend.importer.quiet_from_onnx", fail)
    monkeypatch.setattr("tvmopt.frontend.importer.failing_nodes", lambda model, importer: [])
    message = _refusal(conv_model)
    assert "(whole graph) x1 (the cause)" in message


def test_every_node_is_tried_alone(conv_model):
    seen = []

    def importer(model):
        [node] = model.graph.node
        seen.append(node.name)
        if node.op_type == "Gemm":
            raise RuntimeError("trace\n\nno Gemm today\n")

    model = prepare(conv_model, {}).model
    found = failing_nodes(model, importer)
    assert seen == [node.name for node in model.graph.node]
    assert found == [Unsupported("Gemm", "dense", "no Gemm today")]


def test_node_with_an_input_of_unknown_shape_is_not_blamed(make_model):
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["y"], name="second"),
        ],
        {"x": ("float32", [2])},
        {"y": ("float32", [2])},
    )
    tried = []
    failing_nodes(model, lambda single: tried.append(single.graph.node[0].name))
    assert tried == ["first"]


def test_nodes_without_a_name_are_named_by_position_and_output():
    node = helper.make_node("Bernoulli", ["x"], ["out"])
    assert support._name(node, 7) == "#7->out"


def test_description_shortens_long_lists():
    found = [Unsupported("Loop", f"n{i}", "no converter") for i in range(6)]
    assert "Loop x6 at n0, n1, n2, n3, +2 more (no converter)" in describe(found)


def test_imported_numbers_are_the_references(make_model):
    from tvmopt.frontend.reference import Reference

    model = make_model(
        [
            helper.make_node("Clip", ["x", "low", "high"], ["c"]),
            helper.make_node("Gather", ["c", "ids"], ["y"], axis=1),
        ],
        {"x": ("float32", [2, 3])},
        {"y": ("float32", [2, 2])},
        {"low": np.float32(-0.5), "high": np.float32(0.5), "ids": np.array([-1, 0])},
    )
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    mod = import_onnx(prepare(model, {}).model)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    machine = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, Reference(model)({"x": x})[0])


def test_the_rank_behind_a_gather_with_indices_of_the_call_is_known(make_model):
    """Also in a branch, whose expressions are not bound to variables."""
    axes = np.array([0])
    inner = [
        helper.make_node("Gather", ["x", "ids"], ["g"], axis=1),
        helper.make_node("Unsqueeze", ["g", "axes"], ["u"]),
    ]
    declared = helper.make_tensor_value_info
    branch = helper.make_graph(inner, "b", [], [declared("u", FLOAT, [1, 2, 2])])
    other = helper.make_node("Unsqueeze", ["x", "axes"], ["v"])
    otherwise = helper.make_graph([other], "o", [], [declared("v", FLOAT, [1, 2, 2])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=otherwise)
    inputs = {"x": ("float32", [2, 2]), "ids": ("int64", [2]), "c": ("bool", [])}
    for nodes in (inner, [node]):
        model = make_model(
            nodes, inputs, {nodes[-1].output[0]: ("float32", [1, 2, 2])}, {"axes": axes}
        )
        assert [int(extent) for extent in import_onnx(model)["main"].ret_ty.shape] == [1, 2, 2]


def test_old_slice_with_attributes_imports_through_a_newer_opset(make_model):
    node = helper.make_node("Slice", ["x"], ["y"], name="cut", starts=[1], ends=[3])
    model = make_model([node], {"x": ("float32", [4, 4])}, {"y": ("float32", [2, 4])}, opset=9)
    with pytest.raises(Exception, match="NoneType"):
        quiet_from_onnx(model)
    shape = import_onnx(model)["main"].ret_ty.shape
    assert [int(d) for d in shape] == [2, 4]

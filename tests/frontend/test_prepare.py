"""Tests of model preparation: static shapes, constant folding, unchanged input model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.importer import import_onnx
from tvmopt.frontend.prepare import _sort_nodes, prepare, session_options
from tvmopt.frontend.reference import Reference
from tvmopt.frontend.shapes import declared_dims


@pytest.fixture
def conv_bn(make_model):
    """Nx3x6x6 -> Conv -> BatchNormalization, with values that a wrong fold would change."""
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3), np.float32),
        "scale": rng.uniform(0.5, 2, 4).astype(np.float32),
        "shift": rng.standard_normal(4, np.float32),
        "mean": rng.standard_normal(4, np.float32),
        "var": rng.uniform(0.5, 2, 4).astype(np.float32),
    }
    return make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node(
                "BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"], name="bn"
            ),
        ],
        {"x": ("float32", ["n", 3, 6, 6])},
        {"y": ("float32", ["n", 4, 4, 4])},
        constants,
    )


def test_batch_normalisation_folds_into_the_convolution(conv_bn):
    prepared = prepare(conv_bn, {"x": (2, 3, 6, 6)})
    assert [node.op_type for node in prepared.model.graph.node] == ["Conv"]
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6), np.float32)
    [folded] = Reference(prepared.model)({"x": x})
    [whole] = Reference(prepared.reference)({"x": x})
    np.testing.assert_allclose(folded, whole, rtol=1e-4, atol=1e-5)


def test_reference_has_every_node_of_the_users_model(conv_bn):
    prepared = prepare(conv_bn, {"x": (2, 3, 6, 6)})
    assert [n.name for n in prepared.reference.graph.node] == ["conv", "bn"]
    assert declared_dims(prepared.reference.graph.input[0]) == [2, 3, 6, 6]
    assert prepared.input_shapes == {"x": (2, 3, 6, 6)}


def test_argument_is_not_changed(conv_bn):
    before = conv_bn.SerializeToString(deterministic=True)
    prepare(conv_bn, {"x": (2, 3, 6, 6)})
    assert conv_bn.SerializeToString(deterministic=True) == before


def test_shapes_are_inferred_for_inner_values(conv_model):
    model = prepare(conv_model, {}).model
    inferred = {value.name: declared_dims(value) for value in model.graph.value_info}
    assert inferred["c"] == [1, 8, 8, 8]


def test_shape_arithmetic_is_folded_to_constants(make_model):
    model = make_model(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ],
        {"x": ("float32", ["n", 2, 3])},
        {"y": ("float32", None)},
        {"zero": np.array([0]), "rest": np.array([-1])},
    )
    prepared = prepare(model, {"x": (4, 2, 3)})
    assert [node.op_type for node in prepared.model.graph.node] == ["Reshape"]


def test_stays_in_the_default_domain(conv_model):
    assert {n.domain for n in prepare(conv_model, {}).model.graph.node} <= {"", "ai.onnx"}


def test_model_that_the_reference_refuses(make_model):
    model = make_model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        {"a": ("float32", [2, 3]), "b": ("float32", [4, 5])},
        {"y": ("float32", None)},
    )
    with pytest.raises(ModelError, match="must load in ONNX Runtime, the reference") as caught:
        prepare(model, {})
    assert "\n" not in str(caught.value)


def test_a_pad_without_outputs_is_refused(make_model):
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = make_model([relu], {"x": ("float32", [2, 2])}, {"y": ("float32", [2, 2])})
    model.graph.node.append(helper.make_node("Pad", ["x"], [], name="pad"))
    with pytest.raises(ModelError, match="ONNX Runtime"):
        prepare(model, {})


def test_shape_that_the_model_cannot_take(conv_bn, make_model):
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": ("float32", ["n", 3])},
        {"y": ("float32", ["n", 4])},
        {"w": np.ones((3, 4), np.float32)},
    )
    with pytest.raises(ModelError, match="must load in ONNX Runtime"):
        prepare(model, {"x": (2, 5)})
    with pytest.raises(ConfigError, match="must have the model's rank"):
        prepare(conv_bn, {"x": (1, 3, 36)})


def test_static_dimension_is_changed_where_the_model_can_take_it(conv_model):
    prepared = prepare(conv_model, {"x": (1, 3, 16, 16)})
    shapes = {value.name: declared_dims(value) for value in prepared.model.graph.value_info}
    assert shapes["c"] == [1, 8, 16, 16]


def test_result_is_valid_onnx(conv_bn):
    onnx.checker.check_model(prepare(conv_bn, {"x": (1, 3, 6, 6)}).model)


def test_constants_that_the_reference_makes_have_names_of_their_own(make_model):
    """ONNX Runtime would generate the same names again when it loads the result, and fail."""
    shape = ("float32", (1, 6, 4))
    weights = {f"{kind}{i}": np.eye(4, dtype=np.float32)[: 4 if kind == "w" else 1].squeeze()
               for i in range(2) for kind in "wb"}  # fmt: skip
    nodes = []
    for i, (source, result) in enumerate((("x", "h"), ("h", "y"))):
        nodes.append(helper.make_node("MatMul", [source, f"w{i}"], [f"p{i}"], f"product{i}"))
        nodes.append(helper.make_node("Add", [f"p{i}", f"b{i}"], [result], f"bias{i}"))
    nodes.append(helper.make_node("Shape", ["x"], ["size"], "size"))
    outputs = {"y": shape, "size": ("int64", (3,))}
    prepared = prepare(make_model(nodes, {"x": shape}, outputs, weights), {})
    made = {i.name for i in prepared.model.graph.initializer} - set(weights)
    assert made
    # A constant that is a graph output keeps its name.
    assert all(name.startswith("folded/") or name == "size" for name in made)
    assert [o.name for o in prepared.model.graph.output] == ["y", "size"]
    onnx.checker.check_model(prepared.model)
    x = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    for got, want in zip(
        Reference(prepared.model)({"x": x}), Reference(prepared.reference)({"x": x}), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("between", [[], [helper.make_node("Identity", ["padded"], ["same"])]])
@pytest.mark.parametrize("pads", [[0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 2, 2, 0, 0, 0, 0]])
def test_zeros_around_a_max_pool_are_not_minus_infinity(make_model, pads, between):
    """ONNX Runtime's optimiser fills with -inf, and cannot load a result with two of them."""
    model = make_model(
        [
            helper.make_node("Pad", ["x", "pads"], ["padded"]),
            *between,
            helper.make_node(
                "MaxPool",
                ["same" if between else "padded"],
                ["y"],
                kernel_shape=[2, 2],
                strides=[2, 2],
            ),
        ],
        {"x": ("float32", [1, 1, 4, 4])},
        {"y": ("float32", None)},
        {"pads": np.array(pads, np.int64)},
    )
    prepared = prepare(model, {})
    x = -np.random.default_rng(0).random((1, 1, 4, 4), np.float32) - 1
    rows = 4 + pads[2]
    padded = np.zeros((rows, rows), np.float32)
    padded[pads[2] :, pads[2] :] = x[0, 0]
    half = rows // 2
    expected = padded[: 2 * half, : 2 * half].reshape(half, 2, half, 2).max(axis=(1, 3))
    for each in (prepared.model, prepared.reference):
        np.testing.assert_array_equal(Reference(each)({"x": x})[0][0, 0], expected)


def test_pad_goes_into_a_convolution(make_model):
    model = make_model(
        [
            helper.make_node("Pad", ["x", "pads"], ["padded"]),
            helper.make_node("Conv", ["padded", "w"], ["y"]),
        ],
        {"x": ("float32", [1, 1, 4, 4])},
        {"y": ("float32", None)},
        {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "w": np.ones((2, 1, 3, 3), "f4")},
    )
    assert [node.op_type for node in prepare(model, {}).model.graph.node] == ["Conv"]


def test_onnx_runtime_loses_the_fusion_only_where_a_pool_is_padded(make_model):
    """ONNX Runtime is a benchmark peer, so other models must keep the fusion."""

    def options(consumer):
        return session_options(
            make_model(
                [helper.make_node("Pad", ["x", "pads"], ["padded"]), consumer],
                {"x": ("float32", [1, 1, 4, 4])},
                {"y": ("float32", None)},
                {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "w": np.ones((2, 1, 3, 3))},
            )
        )

    key = "optimization.disable_specified_optimizers"
    pool = options(helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[3, 3]))
    assert pool.get_session_config_entry(key) == "Pad_Fusion"
    conv = options(helper.make_node("Conv", ["padded", "w"], ["y"]))
    with pytest.raises(RuntimeError, match="does not have configuration"):
        conv.get_session_config_entry(key)


def test_nodes_in_any_order_are_sorted(make_model):
    """ONNX requires topological order, but ONNX Runtime accepts any order."""
    nodes = [
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Add", ["x", "w"], ["a"]),
    ]
    specs = {"x": ("float32", [2])}, {"y": ("float32", [2])}
    model = make_model(nodes, *specs, {"w": np.ones(2, np.float32)})
    prepared = prepare(model, {})
    assert [node.op_type for node in prepared.model.graph.node] == ["Add", "Relu"]
    [got] = Reference(prepared.model)({"x": np.array([-3, 2], np.float32)})
    np.testing.assert_array_equal(got, [0, 3])
    assert import_onnx(prepared.model)


def test_a_subgraph_may_use_a_name_again(make_model):
    """Inside the branch, ``l`` is a local value, not the output of the last node."""
    constant = helper.make_node("Constant", [], ["l"], value_floats=[1.0, 2.0])
    value = helper.make_tensor_value_info("l", onnx.TensorProto.FLOAT, [2])
    branch = helper.make_graph([constant], "branch", [], [value])
    nodes = [
        helper.make_node("Identity", ["y"], ["z"]),
        helper.make_node("If", ["flag"], ["c"], then_branch=branch, else_branch=branch),
        helper.make_node("Relu", ["c"], ["l"]),
        helper.make_node("Tanh", ["l"], ["y"]),
    ]
    graph = make_model(nodes, {"flag": ("bool", [])}, {"z": ("float32", [2])}).graph
    _sort_nodes(graph)
    assert [node.op_type for node in graph.node] == ["If", "Relu", "Tanh", "Identity"]


@pytest.mark.timeout(30)
def test_branches_that_lie_in_branches_are_sorted_once(make_model):
    """Sorting each of them for each of the outer ones took 2^30 steps."""
    value = helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Tanh", ["l"], ["c"]),
        helper.make_node("Relu", ["x"], ["l"]),
    ]
    for _ in range(30):
        branch = helper.make_graph(nodes, "branch", [], [value])
        nodes = [helper.make_node("If", ["flag"], ["c"], then_branch=branch)]
    specs = {"x": ("float32", [2]), "flag": ("bool", [])}, {"c": ("float32", [2])}
    graph = make_model(nodes, *specs).graph
    _sort_nodes(graph)
    for _ in range(30):
        graph = graph.node[0].attribute[0].g
    assert [node.op_type for node in graph.node] == ["Relu", "Tanh"]


def test_a_layer_norm_whose_bias_is_left_out_by_an_empty_name(make_model):
    """ONNX Runtime crashes on the original model."""
    model = make_model(
        [
            helper.make_node("LayerNormalization", ["x", "scale", ""], ["n"], axis=-1),
            helper.make_node("MatMul", ["n", "w"], ["c"]),
            helper.make_node("Add", ["c", "x"], ["y"]),
        ],
        {"x": ("float32", [1, 4, 8])},
        {"y": ("float32", [1, 4, 8])},
        {"scale": np.ones(8, "float32"), "w": np.eye(8, dtype="float32")},
    )
    prepared = prepare(model, {})
    assert list(prepared.model.graph.node[0].input) == ["x", "scale"]
    assert list(model.graph.node[0].input) == ["x", "scale", ""]
    x = np.random.default_rng(0).standard_normal((1, 4, 8)).astype("float32")
    [got] = Reference(prepared.reference)({"x": x})
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + x
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["Concat", "Max", "Min", "Mean", "Sum"])
@pytest.mark.parametrize("place", [0, 1])
def test_one_of_many_inputs_that_is_left_out(make_model, op, place):
    """TVM's importer crashes on it."""
    inputs = ["x", "x", "x"]
    inputs[place] = ""
    more = {"axis": 1} if op == "Concat" else {}
    model = make_model(
        [helper.make_node(op, inputs, ["y"], name="many", **more)],
        {"x": ("float32", [1, 4])},
        {"y": ("float32", None)},
    )
    rule = f"every input of {op} must be given, but node 'many' leaves out input {place + 1}"
    with pytest.raises(ModelError, match=rule) as caught:
        prepare(model, {})
    assert "\n" not in str(caught.value)


def test_an_optional_input_in_the_middle_may_be_left_out(make_model):
    model = make_model(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        {"x": ("float32", [1, 1, 2, 2])},
        {"y": ("float32", [1, 1, 4, 4])},
        {"scales": np.array([1, 1, 2, 2], "float32")},
    )
    assert prepare(model, {}).model.graph.node


@pytest.mark.parametrize("version", [-(2**63), -1, 0, 2**31, 2**63 - 1])
def test_a_left_out_input_in_a_model_of_an_impossible_opset(make_model, version):
    model = make_model(
        [helper.make_node("Sum", ["x", "", "x"], ["y"], name="many")],
        {"x": ("float32", [1, 4])},
        {"y": ("float32", None)},
    )
    model.opset_import[0].version = version
    with pytest.raises(ModelError) as caught:
        prepare(model, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pads", [False, True])
def test_matmuls_are_not_made_gemms_between_reshapes(make_model, pads) -> None:
    """Also where the fusion of pads into pools is disabled, too."""
    weights = {"w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    outputs = {"y": ("float32", [2, 1, 3, 4])}
    if pads:
        weights["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
        nodes += [
            helper.make_node("Pad", ["y", "pads"], ["p"]),
            helper.make_node("MaxPool", ["p"], ["z"], kernel_shape=[2, 2]),
        ]
        outputs = {"z": ("float32", [2, 1, 4, 5])}
    model = make_model(nodes, {"x": ("float32", [2, 1, 3, 4])}, outputs, weights)
    found = [node.op_type for node in prepare(model, {}).model.graph.node]
    assert found == ["MatMul", "Add", *(["Pad", "MaxPool"] if pads else [])]

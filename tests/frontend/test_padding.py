"""Whether the outputs of a model depend on zeros behind its inputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tvmopt.frontend.padding import why_padding_is_seen
from tvmopt.frontend.reference import Reference, input_specs

RNG = np.random.default_rng(0)
SMALL, LARGE = 5, 8
X, MASK = ("float32", ["s", 3]), ("float32", ["s"])
SEEN = "cannot be padded: the model's outputs depend on the padding"
OTHER_SIZE = "cannot be padded: an output has another size that depends on it"
REFUSED = "cannot be padded: ONNX Runtime refuses zeros there: "


@pytest.fixture
def why(make_model):
    """Return why padding of 5 rows to 8 is seen."""

    def asked(nodes, inputs, outputs, axes, constants=None, batches=None) -> str:
        def at(length: int):
            fixed = [{name: _fixed(spec, length) for name, spec in side.items()} for side in sides]
            return make_model(nodes, *fixed, constants)

        sides = inputs, outputs
        small, large = at(SMALL), at(LARGE)
        if batches is None:
            batches = [
                {spec.name: RNG.standard_normal(spec.shape, np.float32)}
                for spec in input_specs(small)
            ]
        references = Reference(small), Reference(large)
        return why_padding_is_seen(*references, input_specs(large), batches, axes)

    return asked


def _fixed(spec, length: int):
    dtype, dims = spec
    return dtype, dims and [length if dim == "s" else dim for dim in dims]


def test_each_row_for_itself(why) -> None:
    node = helper.make_node("Exp", ["x"], ["y"])
    assert why([node], {"x": X}, {"y": X}, [(0, 0)]) == ""


def test_a_sum_of_zeros(why) -> None:
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    outputs = {"y": ("float32", [3])}
    assert why([node], {"x": X}, outputs, [], {"axes": np.array([0])}) == ""


def test_a_mean_depends_on_the_number_of_rows(why) -> None:
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)
    assert why([node], {"x": X}, {"y": ("float32", [3])}, []) == SEEN


def test_a_softmax_depends_on_the_padding_unless_a_mask_hides_it(why) -> None:
    scores = helper.make_node("ReduceSum", ["x", "axes"], ["scores"], keepdims=0)
    bias = [
        helper.make_node("Sub", ["mask", "one"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "high"], ["bias"]),
        helper.make_node("Add", ["scores", "bias"], ["seen"]),
    ]
    outputs = {"y": MASK}
    constants = {"axes": np.array([1]), "one": np.float32(1), "high": np.float32(1e9)}
    softmax = [helper.make_node("Softmax", [name], ["y"], axis=0) for name in ("scores", "seen")]
    axes = {"axes": constants["axes"]}
    assert why([scores, softmax[0]], {"x": X}, outputs, [(0, 0)], axes) == SEEN
    x = RNG.standard_normal((SMALL, 3), np.float32)
    batch = {"x": x, "mask": np.array([1, 0, 1, 1, 0], np.float32)}
    masked = [scores, *bias, softmax[1]], {"x": X, "mask": MASK}, outputs, [(0, 0)], constants
    assert why(*masked, [batch]) == ""


def test_all_batches_and_all_outputs_count(why) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["y"]),
        helper.make_node("ReduceMax", ["x"], ["z"], axes=[0], keepdims=0),
    ]
    outputs = {"y": X, "z": ("float32", [3])}
    asked = nodes, {"x": X}, outputs, [(0, 0)], None
    above, below = (np.full((SMALL, 3), value, np.float32) for value in (2, -2))
    assert why(*asked, [{"x": above}, {"x": above}]) == ""
    assert why(*asked, [{"x": above}, {"x": below}]) == SEEN


def test_an_output_whose_size_is_another_function_of_it(why) -> None:
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    assert why([node], {"x": X}, {"y": ("float32", None)}, []) == OTHER_SIZE
    transposed = helper.make_node("Transpose", ["x"], ["y"])
    assert why([transposed], {"x": X}, {"y": ("float32", None)}, []) == OTHER_SIZE
    assert why([transposed], {"x": X}, {"y": ("float32", None)}, [(0, 1)]) == ""


def test_padding_in_front_of_an_output(why) -> None:
    """The kept part of the output is the first one, which here comes from the padding."""
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    names = "starts", "ends", "axes", "steps"
    constants = dict(zip(names, map(np.array, ([-1], [-100], [0], [-1])), strict=True))
    assert why([node], {"x": X}, {"y": X}, [(0, 0)], constants) == SEEN


def test_zeros_that_onnx_runtime_refuses(why) -> None:
    """An id of zero is looked up at -10, which a table of nine lacks."""
    nodes = [
        helper.make_node("Sub", ["ids", "offset"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["y"]),
    ]
    inputs, outputs = {"ids": ("int64", ["s"])}, {"y": ("float32", ["s"])}
    asked = nodes, inputs, outputs, [(0, 0)]
    table = np.ones(9, np.float32)
    batches = [{"ids": np.arange(1, SMALL + 1)}]
    assert why(*asked, {"table": table, "offset": np.array(9)}, batches) == ""
    assert why(*asked, {"table": table, "offset": np.array(10)}, batches).startswith(REFUSED)


def test_a_nan_of_the_padding_counts_where_it_is_kept(why) -> None:
    """Zeros are divided by zeros."""
    divide = helper.make_node("Div", ["x", "x"], ["y"])
    add = helper.make_node("ReduceSum", ["y", "axes"], ["z"], keepdims=0)
    outputs = {"y": X, "z": ("float32", [3])}
    assert why([divide], {"x": X}, {"y": X}, [(0, 0)]) == ""
    assert why([divide, add], {"x": X}, outputs, [(0, 0)], {"axes": np.array([0])}) == SEEN

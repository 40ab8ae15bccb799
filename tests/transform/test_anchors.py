"""Layer numbers: from ONNX nodes, through the passes, to every feature that uses them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from tvmopt.errors import ConfigError
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.transform import anchors, count_layers
from tvmopt.transform.anchors import with_layers
from tvmopt.transform.simplify import simplify


@pytest.fixture(scope="module")
def branched(make_model):
    """Two convolutions without bias, used in the other order, and a Gemm."""
    rng = np.random.default_rng(0)
    return make_model(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
            helper.make_node("Conv", ["x", "w2"], ["b"], name="second"),
            helper.make_node("Sub", ["b", "a"], ["c"], name="difference"),
            helper.make_node("Flatten", ["c"], ["f"]),
            helper.make_node("Gemm", ["f", "g"], ["y"], transB=1),
        ],
        {"x": ("float32", [1, 2, 4, 4])},
        {"y": ("float32", [1, 3])},
        {
            "w1": rng.standard_normal((2, 2, 1, 1), np.float32),
            "w2": rng.standard_normal((2, 2, 1, 1), np.float32),
            "g": rng.standard_normal((3, 32), np.float32),
        },
    )


def _numbered(mod):
    return [(a.index, a.name, a.op) for a in anchors(mod)]


def test_anchors_bear_the_numbers_and_names_of_the_layer_table(branched):
    model = prepare(branched, {}).model
    mod = import_onnx(model)
    want = [(0, "first", "nn.conv2d"), (1, "second", "nn.conv2d"), (2, "y", "matmul")]
    assert _numbered(mod) == want
    assert [(layer.index, layer.name) for layer in layer_table(model)] == [w[:2] for w in want]
    assert _numbered(simplify(mod)) == want


def test_numbers_survive_storage(branched):
    mod = simplify(import_onnx(prepare(branched, {}).model))
    assert _numbered(tvm.ir.load_json(tvm.ir.save_json(mod))) == _numbered(mod)


def test_table_of_another_model_numbers_by_name(branched):
    model = prepare(branched, {}).model
    first, second, dense = layer_table(model)
    mod = import_onnx(model, [dense, second, first])
    assert [a.index for a in anchors(mod)] == [0, 1, 2]
    moved = [dataclasses.replace(layer, index=layer.index + 7) for layer in (first, second, dense)]
    assert [a.index for a in anchors(import_onnx(model, moved))] == [7, 8, 9]


def test_module_from_elsewhere_is_numbered_in_order(relax_main):
    mod = relax_main(
        lambda emit, x: emit(relax.op.matmul(emit(relax.op.matmul(x, x)), x)),
        x=((4, 4), "float32"),
    )
    assert [(a.index, a.op) for a in anchors(mod)] == [(0, "matmul"), (1, "matmul")]
    assert len({a.name for a in anchors(mod)}) == 2


def test_numbers_that_no_longer_fit_are_not_used(relax_main):
    mod = relax_main(lambda emit, x: emit(relax.op.matmul(x, x)), x=((4, 4), "float32"))
    wrong = with_layers(mod, ["a", "b"], [3, 4])
    assert [a.index for a in anchors(wrong)] == [0]
    assert _numbered(with_layers(mod, ["a"], [3])) == [(3, "a", "matmul")]


@pytest.mark.parametrize(
    ("ops", "count"),
    [(None, 3), ("nn.conv2d", 2), (["relax.nn.conv2d"], 2), (["matmul"], 1), ([], 0),
     (["nn.conv2d", "matmul"], 3), ("nn.conv1d", 0)],
)  # fmt: skip
def test_count_layers(branched, ops, count):
    assert count_layers(import_onnx(prepare(branched, {}).model), ops) == count


def test_count_layers_of_something_else(branched):
    mod = import_onnx(prepare(branched, {}).model)
    with pytest.raises(ConfigError, match=r"ops must be anchor operators .*, but got 'nn\.relu'"):
        count_layers(mod, ["nn.relu", "nn.conv2d"])

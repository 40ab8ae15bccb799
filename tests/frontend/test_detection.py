"""NonMaxSuppression: the boxes that ONNX Runtime keeps, with limits known at run time only."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.check import compile_for_check

_LIMITS = {"most": "int64", "iou": "float32", "score": "float32"}


def _model(images, classes, boxes, limits, *, centred=0, constants=()):
    """A model of one node; the limits are inputs, but for those with a constant value."""
    kinds = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, (images, boxes, 4)),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, (images, classes, boxes)),
    ]
    tensors = []
    for name in limits:
        if name in dict(constants):
            array = np.array([dict(constants)[name]], _LIMITS[name])
            tensors.append(numpy_helper.from_array(array, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, kinds[_LIMITS[name]], (1,)))
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", *limits], ["kept"], name="nms",
        center_point_box=centred,
    )  # fmt: skip
    output = helper.make_tensor_value_info("kept", TensorProto.INT64, (None, 3))
    graph = helper.make_graph([node], "detection", inputs, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)


def _boxes(rng, images, boxes, centred):
    corner, size = rng.random((images, boxes, 2)), rng.random((images, boxes, 2)) * 0.4
    parts = [corner, size] if centred else [corner, corner + size]
    found = np.concatenate(parts, -1).astype("float32")
    if not centred:
        flipped = rng.random((images, boxes)) < 0.3  # corners in any order
        found[flipped] = found[flipped][:, [2, 3, 0, 1]]
    found[:, :2, 2:] = found[:, :2, :2]  # without area
    return found


@pytest.mark.parametrize("centred", [0, 1], ids=["corners", "centres"])
@pytest.mark.parametrize("constants", [(), (("most", 3),)], ids=["at run time", "constant"])
def test_the_same_boxes_are_kept(centred, constants) -> None:
    images, classes, boxes = 2, 3, 40
    model = _model(images, classes, boxes, tuple(_LIMITS), centred=centred, constants=constants)
    run = compile_for_check(import_onnx(prepare(model, {}).model), resolve_target("host", 2))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(centred)
    for most, iou, score in [(0, 0.5, 0.0), (3, 0.5, 0.2), (99, 0.1, 0.5), (5, 0.0, 2.0)]:
        inputs = {
            "boxes": _boxes(rng, images, boxes, centred),
            # With equal scores, the first box wins.
            "scores": np.round(rng.random((images, classes, boxes)), 1).astype("float32"),
            "most": np.array([most], "int64"),
            "iou": np.array([iou], "float32"),
            "score": np.array([score], "float32"),
        }
        given = {value.name: inputs[value.name] for value in session.get_inputs()}
        np.testing.assert_array_equal(run(list(given.values()))[0], session.run(None, given)[0])


@pytest.mark.parametrize("limits", [(), ("most",), ("most", "iou")], ids=str)
def test_limits_that_are_left_out(limits) -> None:
    model = _model(1, 2, 12, limits)
    run = compile_for_check(import_onnx(prepare(model, {}).model), resolve_target("host", 1))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    values = {"most": np.array([4], "int64"), "iou": np.array([0.3], "float32")}
    inputs = {
        "boxes": _boxes(rng, 1, 12, False),
        "scores": rng.random((1, 2, 12)).astype("float32"),
        **{name: values[name] for name in limits},
    }
    np.testing.assert_array_equal(run(list(inputs.values()))[0], session.run(None, inputs)[0])

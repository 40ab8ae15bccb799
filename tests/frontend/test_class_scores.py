"""Which outputs hold scores of classes: told by what computes them last."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx.shape_inference
import pytest

from tvmopt.frontend.class_scores import find_class_scores

_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
net (float[{x}] x) => (float[{y}] y)
<float[4,5] w, float[5] bias = {{1, 2, 3, 4, 5}}, float[5,3,1,1] kernel, float[5,3,1] kernel1,
 int64[2] flat = {{2, 5}}>
{{
  {nodes}
}}
"""


def _model(nodes: str, x: str = "2,4", y: str = "2,5"):
    """Return a model with inferred shapes, as a prepared one has."""
    model = onnx.parser.parse_model(_TEXT.format(nodes=nodes, x=x, y=y))
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("nodes", "x", "y"),
    [
        ("y = Gemm(x, w, bias)", "2,4", "2,5"),
        ("m = MatMul(x, w) y = Add(bias, m)", "2,3,4", "2,3,5"),
        ("e = Exp(x) y = Softmax <axis = -1> (e)", "2,3,4", "2,3,4"),
        ("e = Exp(x) s = LogSoftmax <axis = 1> (e) y = Identity(s)", "2,4", "2,4"),
        ("c = Conv(x, kernel) g = GlobalAveragePool(c) y = Flatten(g)", "2,3,7,7", "2,5"),
        ("c = Conv(x, kernel) g = GlobalAveragePool(c) y = Reshape(g, flat)", "2,3,7,7", "2,5"),
        ("m = MatMul(x, w) s = Sigmoid(m) y = Cast <to = 1> (s)", "2,4", "2,5"),
    ],
)
def test_scores(nodes, x, y) -> None:
    assert find_class_scores(_model(nodes, x, y)).found


@pytest.mark.parametrize(
    ("nodes", "x", "y"),
    [
        ("s = Sigmoid(x) y = Concat <axis = 1> (s, x)", "1,11,2100", "1,22,2100"),
        ("s = Softmax <axis = -1> (x) y = Transpose <perm = [0, 2, 1]> (s)", "1,4,3", "1,3,4"),
        ("y = Softmax <axis = 1> (x)", "1,4,3", "1,4,3"),
        ("y = Conv(x, kernel1)", "1,3,9", "1,5,9"),
        ("m = MatMul(x, w) y = Add(m, m)", "2,3,4", "2,3,5"),
        ("y = Exp(x)", "2,4", "2,4"),
        ("y = Identity(x)", "2,4", "2,4"),
    ],
)
def test_no_scores(nodes, x, y) -> None:
    assert not find_class_scores(_model(nodes, x, y)).found


def test_normalised_hidden_states_are_none() -> None:
    nodes = "m = MatMul(x, w) y = LayerNormalization(m, bias, bias)"
    assert not find_class_scores(_model(nodes, "2,3,4", "2,3,5")).found


@pytest.mark.parametrize(
    ("name", "columns", "found", "doubtful"),
    [
        ("y", 5, True, True),
        ("logits", 5, True, False),
        ("pred_logits.1", 5, True, False),
        ("classScores", 5, True, False),
        ("y", 1, False, False),
        ("pred_boxes", 5, False, False),
        ("imageEmbeds", 5, False, False),
        ("last_hidden_state", 5, False, False),
        ("logistic_regression", 5, True, False),
        ("output_0", 5, True, True),
    ],
)
def test_linear_layer_computes_values_too(name, columns, found, doubtful) -> None:
    model = onnx.parser.parse_model(
        _TEXT.format(nodes="y = Gemm(x, w, bias)", x="2,4", y=f"2,{columns}")
    )
    model.graph.node[0].output[0] = model.graph.output[0].name = name
    scores = find_class_scores(model)
    assert (scores.found, scores.doubtful) == (found, doubtful)
    assert repr(name) in scores.why
    assert not scores.on(random_inputs=True).doubtful
    assert scores.on(random_inputs=False) == scores

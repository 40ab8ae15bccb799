"""Which outputs of a detector are values for the positions of a map of scores."""

from __future__ import annotations

import onnx.parser
import pytest

from tvmopt.frontend.class_scores import find_class_scores
from tvmopt.frontend.score_maps import find_score_maps

_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
net (float[{x}] x) => (float[{heat}] heat, float[{size}] size, float[{other}] other)
{{
  logits = Abs(x)
  heat = {last}(logits)
  size = Exp(x)
  other = Neg(x)
}}
"""


@pytest.mark.parametrize(
    ("heat", "size", "other", "last", "maps"),
    [
        ("2,1,8,6", "2,2,8,6", "2,4,4,6", "Sigmoid", (-1, 0, -1)),
        ("2,48,5", "2,48,4", "2,12,4", "Sigmoid", (-1, 0, -1)),
        ("N,1,8,6", "N,2,8,6", "N,2,8,6", "Sigmoid", (-1, 0, 0)),
        ("2,1,8,6", "2,2,8,6", "2,2,8,6", "Relu", ()),
        ("2,5", "2,4", "2,4", "Sigmoid", ()),
        ("2,1,H,6", "2,2,H,6", "2,2,8,6", "Sigmoid", ()),
    ],
)
def test_maps_by_shape_and_operator(
    heat: str, size: str, other: str, last: str, maps: tuple[int, ...]
) -> None:
    text = _TEXT.format(x=heat, heat=heat, size=size, other=other, last=last)
    model = onnx.parser.parse_model(text)
    assert find_score_maps(model.graph) == maps
    assert find_class_scores(model).maps == maps

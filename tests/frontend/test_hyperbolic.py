"""Sinh and Cosh: near 0, where they overflow, and for values that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx
from tvmopt.stages.check import compile_for_check

_X = np.concatenate(
    [
        np.linspace(-89.2, 89.2, 4001),
        np.geomspace(1e-30, 2, 500),
        -np.geomspace(1e-30, 2, 500),
        [0.0, -0.0, 95.0, -95.0, np.inf, -np.inf, np.nan],
    ]
).astype("float32")


@pytest.mark.parametrize("op", ["Sinh", "Cosh"])
def test_all_values(make_model, op) -> None:
    shape = {"x": ("float32", _X.shape)}
    model = make_model([helper.make_node(op, ["x"], ["y"])], shape, {"y": shape["x"]})
    [found] = compile_for_check(import_onnx(model), resolve_target("host", 1))([_X])
    with np.errstate(over="ignore"):
        wanted = getattr(np, op.lower())(_X.astype("float64")).astype("float32")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=0)
    small = np.abs(_X) < 2
    np.testing.assert_allclose(found[small], wanted[small], rtol=5e-7, atol=0)

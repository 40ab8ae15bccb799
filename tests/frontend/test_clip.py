"""Clip with constant bounds: numbers in the kernel, and the results of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.frontend.reference import Reference
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.lower import lower


def _clip(make_model, low, high, *, dtype="float32", given=False):
    """Return Clip with bounds as constants or, with ``given``, the lower one as an input."""
    bounds = {"low": low, "high": high}
    names = [name if bounds[name] is not None else "" for name in bounds]
    constants = {k: np.array(v, dtype) for k, v in bounds.items() if v is not None}
    inputs = {"x": (dtype, (3, 4))}
    if given:
        inputs["low"] = (dtype, constants.pop("low").shape)
    node = helper.make_node("Clip", ["x", *names], ["y"], name="clip")
    return make_model([node], inputs, {"y": (dtype, (3, 4))}, constants)


def _imported(model):
    prepared = prepare(model, {})
    return prepared, import_onnx(prepared.model, layer_table(prepared.model))


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 6.0), ([0.0], [6.0]), (None, 1.0), (-1.0, None), (float("nan"), 1.0), (2.0, -2.0)],
    ids=str,
)
def test_results_are_those_of_onnx_runtime(make_model, low, high) -> None:
    prepared, mod = _imported(_clip(make_model, low, high))
    x = np.linspace(-9, 9, 12, dtype="float32").reshape(3, 4)
    x[0, 0] = np.nan
    if low is not None and high is not None:  # else ONNX Runtime makes 3.4e38 of an infinity
        x[2, 3] = np.inf
    run = compile_for_check(mod, resolve_target("host", 1))
    np.testing.assert_array_equal(run([x])[0], Reference(prepared.reference)({"x": x})[0])


@pytest.mark.parametrize("bounds", [(0.0, 6.0), ([0.0], [6.0])], ids=["scalars", "shape (1,)"])
def test_bounds_are_numbers_in_the_kernel(make_model, bounds) -> None:
    _, mod = _imported(_clip(make_model, *bounds))
    lowered = lower(mod, resolve_target("host", 1).to_tvm())
    kernels = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    assert [len(kernel.params) for kernel in kernels] == [2]  # x and y


def test_integers_and_bounds_that_are_inputs(make_model) -> None:
    x = np.arange(-6, 6, dtype="int32").reshape(3, 4)
    for given in (False, True):
        prepared, mod = _imported(_clip(make_model, -2, 3, dtype="int32", given=given))
        inputs = {"x": x, **({"low": np.array(-2, "int32")} if given else {})}
        run = compile_for_check(mod, resolve_target("host", 1))
        wanted = Reference(prepared.reference)(inputs)[0]
        np.testing.assert_array_equal(run(list(inputs.values()))[0], wanted)

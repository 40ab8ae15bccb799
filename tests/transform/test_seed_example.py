"""The six lines of apache/tvm pull request 6748 on Relax: ResNets to HWNC and int8, except layer 0.

Tests compare what each of the two steps changes in each layer, and what it leaves alone.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tvm
from tvm import relax

from benchmarks.zoo_topologies import resnet
from tvmopt.frontend import import_onnx, prepare
from tvmopt.transform import LayoutConfig, anchors, convert_layout, count_layers, recast
from tvmopt.transform.simplify import simplify

CONVS = {18: 20, 50: 53}
MODELS = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}


@functools.cache
def _workload(depth):
    model = prepare(resnet(*MODELS[depth]), {"image": (1, 3, 224, 224)}).model
    return simplify(import_onnx(model))


def _described(mod):
    """Return per layer: name, data layout, kernel layout, dtypes of data, weight and result."""
    rows = []
    for anchor in anchors(mod):
        attrs, (data, weight) = anchor.call.attrs, anchor.call.args[:2]
        layouts = [str(getattr(attrs, k, "")) for k in ("data_layout", "kernel_layout")]
        types = [str(x.ty.dtype) for x in (data, weight, anchor.var)]
        rows.append((anchor.name, *layouts, *types))
    return rows


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("depth", "dtype"),
    [(18, "int8"), (18, "int4"), (50, "int8"), pytest.param(50, "int4", marks=pytest.mark.slow)],
)
def test_six_lines(depth, dtype):
    mod = _workload(depth)
    before = _described(mod)
    assert count_layers(mod, ["nn.conv2d"]) == CONVS[depth]

    layout_config = LayoutConfig(skip_layers=[0])
    desired_layouts = {"nn.conv2d": ["HWNC", "default"]}
    with layout_config:
        moved = convert_layout(mod, desired_layouts)
    assert count_layers(moved, ["nn.conv2d"]) == CONVS[depth]
    name = before[0][0]
    floats = ("float32",) * 3
    assert _described(moved) == [
        (name, "NCHW", "OIHW", *floats),
        *[(row[0], "HWNC", "HWOI", *floats) for row in before[1:-1]],
        (before[-1][0], "", "", *floats),
    ]

    mod = recast(moved, dtype, "int32", skip_layers=[0])
    assert _described(mod) == [
        (name, "NCHW", "OIHW", *floats),
        *[(row[0], "HWNC", "HWOI", dtype, dtype, "int32") for row in before[1:-1]],
        (before[-1][0], "", "", dtype, dtype, "int32"),
    ]
    # The skipped layer is the same call, and the function type is unchanged.
    first = [anchors(m)[0].call for m in (_workload(depth), mod)]
    tvm.ir.assert_structural_equal(first[0].attrs, first[1].attrs)
    np.testing.assert_array_equal(first[0].args[1].value.numpy(), first[1].args[1].value.numpy())
    tvm.ir.assert_structural_equal(mod["main"].ret_ty, _workload(depth)["main"].ret_ty)
    relax.analysis.well_formed(mod)  # raises on a difference
    text = mod.script(show_meta=False)
    assert f'dtype="{dtype}"' in text
    again = tvm.ir.load_json(tvm.ir.save_json(mod))
    tvm.ir.assert_structural_equal(again, mod, map_free_vars=True)


@pytest.mark.parametrize("depth", CONVS)
def test_layer_0_is_found_without_being_told(depth):
    """Its 3 input channels are too few; the weight layouts show that the other layers changed."""
    mod = _workload(depth)
    weights = [anchor.call.args[1].value.numpy() for anchor in anchors(mod)[:-1]]
    moved = anchors(convert_layout(mod, {"nn.conv2d": "HWNC"}))[:-1]
    np.testing.assert_array_equal(moved[0].call.args[1].value.numpy(), weights[0])
    for anchor, weight in zip(moved[1:], weights[1:], strict=True):
        after = anchor.call.args[1].value.numpy()
        np.testing.assert_array_equal(after, weight.transpose(2, 3, 0, 1))

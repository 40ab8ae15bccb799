"""Tests of the graph of layers, and of layout-conversion functions on its edges."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.transform.layer_graph import FIXED, Link, change_module, forms_of, layer_links

from .plan_net import residual_net


def test_links_follow_the_tensors() -> None:
    links = layer_links(residual_net(), range(4))
    assert links == [
        Link(FIXED, 0, (1, 8, 8, 32), "float32"),
        Link(0, 1, (1, 8, 8, 32), "float32"),
        Link(0, 3, (1, 4, 4, 32), "float32"),  # the residual, pooled
        Link(1, 2, (1, 8, 8, 64), "float32"),
        Link(2, 3, (1, 4, 4, 64), "float32"),
        Link(3, FIXED, (1, 4, 4, 32), "float32"),
    ]


@pytest.mark.parametrize(
    ("source", "target"), [("NHWC", "NCHW16c"), ("NCHW16c", "NHWC"), ("NHWC", "NCHW")]
)
def test_a_layout_change_equals_numpy(source: str, target: str) -> None:
    forms = forms_of(residual_net(), ["NHWC", "NCHW16c", "NCHW"])
    shape = (1, 4, 6, 32)
    module = change_module(shape, "float32", forms[source], forms[target])
    assert module is not None
    nhwc = np.random.default_rng(0).random(shape, dtype=np.float32)
    held = {
        "NHWC": nhwc,
        "NCHW": nhwc.transpose(0, 3, 1, 2),
        "NCHW16c": nhwc.reshape(1, 4, 6, 2, 16).transpose(0, 3, 1, 2, 4),
    }
    executable = tvm.compile(module, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    data = tvm.runtime.tensor(np.ascontiguousarray(held[source]))
    np.testing.assert_array_equal(machine["main"](data).numpy(), held[target])


def test_a_layout_change_by_view_needs_no_function() -> None:
    forms = forms_of(residual_net(), ["NHWC", "NCHW16c"])
    assert change_module((1, 4, 4, 16), "float32", forms["NHWC"], forms["NCHW16c"]) is None
    assert change_module((1, 1, 1, 64), "float32", forms["NHWC"], forms["NCHW16c"]) is None
    assert change_module((1, 4, 4, 24), "float32", forms["NHWC"], forms["NCHW16c"]) is None

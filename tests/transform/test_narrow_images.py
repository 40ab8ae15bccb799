"""Images of width 1 are transposed for matrix instructions: equal results, and when."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.transform import narrow_images
from tvmopt.transform.narrow_images import TransposeNarrowImages

AMX = resolve_target("sapphirerapids", 2).to_tvm()


def _conv(x, w, dtype="float32", **options):
    """Return a module of one NHWC convolution, data and weight parameters."""
    builder = relax.BlockBuilder()
    data, weight = (
        relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in (("x", x), ("w", w))
    )
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            call = relax.op.nn.conv2d(data, weight, **layouts, **options)
            out = builder.emit_output(builder.emit(call))
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture
def transposed(monkeypatch):
    """Return the pass as for a CPU with tiles of float32."""
    monkeypatch.setattr(narrow_images, "tiled", lambda _: frozenset({("float32", "float32")}))
    return TransposeNarrowImages(AMX)


def _run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(a) for a in arrays)).numpy()


def _data_shape(mod):
    """Return the shape of the result of the convolution."""
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.nn.conv2d":
            found.append([int(extent) for extent in expr.ty.shape])

    relax.analysis.post_order_visit(mod["main"], visit)
    return found[0]


@pytest.mark.parametrize(
    ("x", "w", "options", "shape"),
    [
        ((1, 64, 1, 3), (5, 1, 3, 4), {"padding": [2, 0, 2, 0]}, [1, 1, 64, 4]),
        ((2, 38, 1, 3), (5, 1, 3, 4), {}, [2, 1, 34, 4]),
        ((1, 75, 1, 3), (3, 1, 3, 4), {"strides": [2, 1], "padding": [1, 0, 0, 0]}, [1, 1, 37, 4]),
        ((1, 40, 1, 3), (3, 1, 3, 4), {"dilation": [2, 1]}, [1, 1, 36, 4]),
    ],
)
def test_results_do_not_change(x, w, options, shape, transposed):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (x, w)]
    before = _conv(x, w, **options)
    after = transposed(before)
    assert _data_shape(after) == shape
    np.testing.assert_allclose(_run(after, *arrays), _run(before, *arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 8, 80, 4), (3, 3, 4, 4), {"padding": [1, 1, 1, 1]}),
        ((1, 64, 1, 4), (5, 1, 1, 4), {"groups": 4}),
        ((1, 64, 1, 4), (5, 3, 4, 4), {"padding": [0, 1, 0, 1]}),
        ((1, 1, 64, 4), (1, 5, 4, 4), {}),
    ],
)
def test_other_images_stay_as_they_are(x, w, options, transposed):
    mod = _conv(x, w, **options)
    tvm.ir.assert_structural_equal(transposed(mod), mod)


@pytest.mark.parametrize(
    ("target", "dtype", "changes"),
    [
        (AMX, "bfloat16", True),
        (AMX, "float32", False),
        (resolve_target("icelake-server", 2).to_tvm(), "bfloat16", False),
        (None, "bfloat16", False),
    ],
)
def test_the_target_decides(target, dtype, changes):
    mod = _conv((1, 38, 1, 16), (5, 1, 16, 16), dtype)
    assert (_data_shape(TransposeNarrowImages(target)(mod)) == [1, 1, 34, 16]) is changes

"""Max pooling of bfloat16 on a CPU compares in float32, and rounds nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tests.libraries import loaded
from tests.transform.attention.graphs import Emit, module
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower

_TARGET = resolve_target("host", 1)


def _pooled(shape: tuple[int, ...], dtype: str, **attributes: object) -> tvm.IRModule:
    pool = {4: relax.op.nn.max_pool1d, 5: relax.op.nn.max_pool2d, 6: relax.op.nn.max_pool3d}
    operator = pool[len(shape) + 1]

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        narrow = emit(relax.op.astype(x, dtype))
        return relax.op.astype(emit(operator(narrow, **attributes)), "float32")

    return lower(module(body, (shape, "float32")), _TARGET.to_tvm())


def _compared(mod: tvm.IRModule) -> set[str]:
    """Return the dtypes in which the functions of a module compare."""
    found: set[str] = set()
    for _, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(
                func.body, (tirx.Max, lambda node: found.add(str(node.ty.dtype)))
            )
    return found


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 8, 8, 16), {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "layout": "NHWC"}),
        ((1, 8, 9, 7), {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True}),
        ((2, 4, 11), {"pool_size": (3,), "strides": (2,)}),
        ((1, 2, 5, 6, 4), {"pool_size": (2, 3, 2)}),
    ],
)
def test_the_largest_value_is_exact(shape, attributes, tmp_path):
    narrow, wide = (_pooled(shape, dtype, **attributes) for dtype in ("bfloat16", "float32"))
    assert _compared(narrow) == {"float32"}
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    found = []
    for name, mod in {"narrow": narrow, "wide": wide}.items():
        build_library(mod, _TARGET, tmp_path / f"{name}.so")
        found.append(loaded(tmp_path / f"{name}.so")(x)[0])
    np.testing.assert_array_equal(found[0], found[1])


def test_other_dtypes_stay():
    attributes = {"pool_size": (2, 2), "layout": "NHWC"}
    assert _compared(_pooled((1, 4, 4, 8), "float16", **attributes)) == {"float16"}

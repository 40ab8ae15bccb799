"""Convolutions and matmuls whose weights ``vpmaddubsw`` multiplies exactly, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.drawn_products import conv2d_numpy
from tvmopt import host
from tvmopt.build import build_library
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.kernels.exact_pairs import has_exact_pairs
from tvmopt.runtime.library import open_library
from tvmopt.transform.lower import lower

HERE = resolve_target("haswell", 1)
needs_avx2 = pytest.mark.skipif(
    not host.cpu_flags().issuperset(HERE.cpu_flags), reason="this CPU has no AVX2"
)
EXTREME = {"exact": (127, 1, -127, 127, 64, 64, -64, -64), "saturating": (127, 2, 0, 0, 0, 0, 0, 0)}


def weight(kind: str, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Return int8 weights whose pairs along ``axis`` are exact, or one of which saturates."""
    moved = np.random.default_rng(0).integers(-64, 65, shape).astype(np.int8)
    view = np.moveaxis(moved, axis, -1)
    view[..., :8] = EXTREME["exact"]
    if kind == "saturating":
        view[(0,) * (view.ndim - 1)][:8] = EXTREME[kind]
    return moved


def conv(x: relax.Expr, w: np.ndarray) -> relax.Expr:
    return relax.op.nn.conv2d(
        x, relax.const(w), data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32"
    )


def matmul(x: relax.Expr, w: np.ndarray) -> relax.Expr:
    return relax.op.matmul(x, relax.const(w), out_dtype="int32")


SHAPES = {conv: ((1, 6, 6, 16), (3, 3, 16, 24), 2), matmul: ((12, 32), (32, 24), 0)}


def lowered(layer, *weights: np.ndarray, target: TargetSpec = HERE) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPES[layer][0], "uint8"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            results = [builder.emit(layer(x, w)) for w in weights]
            out = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        builder.emit_func_output(out)
    return lower(builder.get(), target.to_tvm())


def marks(mod: tvm.IRModule) -> list[bool]:
    """Return whether each function with a weight is marked."""
    funcs = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    return [has_exact_pairs(f) for f in funcs if "layout_free_buffers" in (f.attrs or {})]


@needs_avx2
@pytest.mark.parametrize("kind", EXTREME)
@pytest.mark.parametrize("layer", SHAPES)
def test_numbers(layer, kind: str, tmp_path) -> None:
    shape, weights, axis = SHAPES[layer]
    w = weight(kind, weights, axis)
    mod = lowered(layer, w)
    assert marks(mod) == [kind == "exact"]
    built = build_library(mod, HERE, tmp_path / "lib.so")
    assert ("vpmaddubsw" in str(built.instructions)) is (kind == "exact")
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    x[0] = 255
    executor = open_library(str(tmp_path / "lib.so"), threads=1)
    [result] = executor.bind("main", [executor.tensor(x)])()
    wide = x.astype(np.int64), w.astype(np.int64)
    once = (1, 1)
    expected = (
        wide[0] @ wide[1] if layer is matmul else conv2d_numpy(*wide, once, (0,) * 4, once, 1)
    )
    np.testing.assert_array_equal(executor.read(result), expected)


@pytest.mark.parametrize("layer", SHAPES)
def test_one_saturating_weight_of_a_shared_function_counts(layer) -> None:
    _, weights, axis = SHAPES[layer]
    exact, saturating = (weight(kind, weights, axis) for kind in EXTREME)
    assert marks(lowered(layer, exact, np.roll(exact, 1, -1))) == [True]
    assert marks(lowered(layer, exact, saturating)) == [False]


@pytest.mark.parametrize("cpu", ["cascadelake", "alderlake", "x86-64", "graviton3"])
def test_other_cpus_need_no_mark(cpu: str) -> None:
    _, weights, axis = SHAPES[conv]
    mod = lowered(conv, weight("exact", weights, axis), target=resolve_target(cpu, 1))
    assert not any(marks(mod))

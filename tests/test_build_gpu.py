"""Libraries for a GPU, built on a machine without a GPU."""

from __future__ import annotations

import shutil

import pytest
from tvm import relax

from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
H200 = resolve_target("nvidia-h200")


def test_a_copy_at_the_end_of_a_network_is_built(tmp_path) -> None:
    """TVM's search for reshape functions fails on a function without a block."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.normalize(relax.op.reshape(x, (8, 8))))
        builder.emit_func_output(y)
    lowered = lower(builder.get(), H200.to_tvm())
    built = build_library(lowered, H200, tmp_path / "a.so")
    assert list(built.sources.values()) == ["default:gpu_copy"]


def test_independent_kernels_of_a_library_are_one_launch(tmp_path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((24, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [builder.emit(relax.op.flip(x, axis)) for axis in (0, 1)]
            out = builder.emit_output(relax.Tuple(parts))
        builder.emit_func_output(out)
    lowered = lower(builder.get(), H200.to_tvm())
    built = build_library(lowered, H200, tmp_path / "a.so")
    assert list(built.sources.values()) == ["default:gpu_elementwise"] * 2
    assert b"horizontal0_" in (tmp_path / "a.so").read_bytes()

"""Loops over a modulo of two's powers are split; LLVM would read past the end of their input."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.script import tirx as T  # noqa: N812

from tvmopt.device.target import resolve_target
from tvmopt.kernels.passes.split_periodic import split_periodic_loops
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE


@T.prim_func(s_tir=True)
def _before(x: T.Buffer((12,), "float32"), y: T.Buffer((48,), "float32")) -> None:
    for i in range(3):
        for j in range(16):
            y[i * 16 + j] = x[i * 4 + j % 4] + x[j // 4]


@T.prim_func(s_tir=True)
def _after(x: T.Buffer((12,), "float32"), y: T.Buffer((48,), "float32")) -> None:
    for i, j_outer, j_inner in T.grid(3, 4, 4):
        y[i * 16 + (j_outer * 4 + j_inner)] = x[i * 4 + j_inner] + x[j_outer]


@T.prim_func(s_tir=True)
def _other(x: T.Buffer((12,), "float32"), y: T.Buffer((48,), "float32")) -> None:
    for i in range(18):
        y[i] = x[i % 4]  # 18 is no multiple
    for i in range(12):
        y[i] = x[i % 3]  # no power of two
    for i in range(4):
        y[i] = x[i % 4]
    for i in T.vectorized(16):
        y[i] = x[i % 4]


def test_loop_is_split() -> None:
    tvm.ir.assert_structural_equal(split_periodic_loops(_before).body, _after.body, True)


def test_other_loops_stay() -> None:
    tvm.ir.assert_structural_equal(split_periodic_loops(_other).body, _other.body)


def _tiled(shape: tuple[int, ...], repeats: tuple[int, ...]) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.tile(x, list(repeats))))
    mod = relax.transform.LegalizeOps()(builder.get())
    built = tvm.compile(mod, resolve_target("host", 1).to_tvm(), tir_pipeline=CPU_PIPELINE)
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(values)).numpy()
    np.testing.assert_array_equal(got, np.tile(values, repeats))


@pytest.mark.parametrize(
    ("shape", "repeats"), [((3, 4, 5), (6, 4, 2)), ((2, 3, 4, 5), (7, 6, 4, 2))]
)
def test_tiles_that_llvm_read_past_the_end_of(shape, repeats) -> None:
    _tiled(shape, repeats)


_SMALL = st.integers(1, 9)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.tuples(_SMALL, _SMALL), min_size=2, max_size=4))
def test_tiles(sizes) -> None:
    _tiled(tuple(n for n, _ in sizes), tuple(r for _, r in sizes))

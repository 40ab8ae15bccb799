"""An index from data stays within its buffer; all other functions stay as they are."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.passes.clamp_indices import INDICES_HOLD, clamp_indices_in
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE


@T.prim_func(s_tir=True)
def _before(
    x: T.Buffer((16,), "float32"), ids: T.Buffer((4,), "int32"), y: T.Buffer((16,), "float32")
) -> None:
    for i in range(4):
        y[i] = x[ids[i] + i]
        y[ids[i]] = x[0]
        k: T.let[T.int32] = ids[i] * 4
        y[i] = x[k]
        y[T.Ramp(k, 1, 4)] = x[T.Ramp(ids[i], 1, 4)]


@T.prim_func(s_tir=True)
def _after(
    x: T.Buffer((16,), "float32"), ids: T.Buffer((4,), "int32"), y: T.Buffer((16,), "float32")
) -> None:
    for i in range(4):
        y[i] = x[T.max(T.min(ids[i] + i, 15), 0)]
        y[T.max(T.min(ids[i], 15), 0)] = x[0]
        k: T.let[T.int32] = ids[i] * 4
        y[i] = x[T.max(T.min(k, 15), 0)]
        y[T.Ramp(T.max(T.min(k, 12), 0), 1, 4)] = x[T.Ramp(T.max(T.min(ids[i], 12), 0), 1, 4)]


@T.prim_func(s_tir=True)
def _within(
    x: T.Buffer((16,), "float32"), ids: T.Buffer((4,), "int32"), y: T.Buffer((16,), "float32")
) -> None:
    for i in range(4):
        k: T.let[T.int32] = T.max(T.min(ids[i], 3), 0)
        y[i * 4] = x[k * 4 + i]
        for j in range(4):
            y[j] = x[i * 4 + j]


def test_a_function_that_vouches_for_its_indices_stays_as_it_is() -> None:
    vouched = _before.with_attr(INDICES_HOLD, True)
    assert clamp_indices_in(vouched).same_as(vouched)
    assert not clamp_indices_in(_before).same_as(_before)


def test_indices_from_data_are_clamped() -> None:
    tvm.ir.assert_structural_equal(clamp_indices_in(_before).body, _after.body, True)


def test_indices_that_are_proven_stay() -> None:
    tvm.ir.assert_structural_equal(clamp_indices_in(_within), _within)


def test_no_access_leaves_its_buffer() -> None:
    target = tvm.target.Target({"kind": "llvm"})
    mod = tvm.IRModule({"main": _before.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, target=target, pipeline=CPU_PIPELINE)
    memory = np.full(64, 7, "float32")
    first = -(memory.ctypes.data // 4) % 16  # TVM's tensors begin at multiples of 64 bytes
    y = tvm.runtime.from_dlpack(memory[first + 16 : first + 32])
    x = tvm.runtime.tensor(np.arange(16, dtype="float32"))
    for wild in (2**31 - 1, -(2**31), 100_000, 19, 16, -1, -4):
        built["main"](x, tvm.runtime.tensor(np.full(4, wild, "int32")), y)
        assert (memory[: first + 16] == 7).all()
        assert (memory[first + 32 :] == 7).all()
        assert (y.numpy() < 16).all()

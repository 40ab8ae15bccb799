"""Reshapes of reshapes become one."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tests.transform.attention.graphs import module
from tvmopt.transform.merge_reshapes import MergeReshapes

_X = ((2, 1, 12), "float32")


def _reshapes(mod: tvm.IRModule) -> int:
    text = mod.script()
    return sum(text.count(f"R.{name}(") for name in ("reshape", "squeeze", "expand_dims"))


def test_a_chain_becomes_one_reshape() -> None:
    def body(emit, x):
        y = emit(relax.op.expand_dims(emit(relax.op.squeeze(x, [1])), [0]))
        return relax.op.reshape(y, (4, 6))

    mod = module(body, _X)
    merged = relax.transform.DeadCodeElimination(["main"])(MergeReshapes()(mod))
    assert (_reshapes(mod), _reshapes(merged)) == (3, 1)
    x = np.arange(24, dtype=np.float32).reshape(_X[0])
    vm = relax.VirtualMachine(tvm.compile(merged, "llvm"), tvm.cpu())
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), x.reshape(4, 6))


def test_a_reshape_that_others_read_stays() -> None:
    def body(emit, x):
        y = emit(relax.op.squeeze(x, [1]))
        z = emit(relax.op.reshape(y, (4, 6)))
        return relax.op.matmul(y, emit(relax.op.reshape(z, (12, 2))))

    merged = relax.transform.DeadCodeElimination(["main"])(MergeReshapes()(module(body, _X)))
    assert _reshapes(merged) == 2  # (2, 12), and (12, 2) of the input

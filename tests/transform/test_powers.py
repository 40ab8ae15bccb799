"""Powers with small constant exponents become multiplications; other powers stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower

op = relax.op
CPU = tvm.target.Target({"kind": "llvm"})
GPU = resolve_target("nvidia-h200")


def module(relax_main, exponent, dtype="float32", shape=(3, 50)):
    value = relax.const(np.array(exponent, dtype))
    return relax_main(lambda emit, x: emit(op.power(x, value)), x=(shape, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, 4.0, [2.0], [[3.0]]])
def test_powers_equal_numpy(relax_main, exponent, dtype) -> None:
    low = 0 if exponent == 0.5 else -3
    x = np.random.default_rng(0).uniform(low, 3, (3, 50)).astype(dtype)
    lowered = lower(module(relax_main, exponent, dtype), CPU)
    assert "T.pow" not in lowered.script()
    machine = relax.VirtualMachine(tvm.compile(lowered, CPU), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert got.dtype == x.dtype and got.shape == x.shape
    close = 3e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(got, x ** np.asarray(exponent, dtype), rtol=close)


@pytest.mark.parametrize("exponent", [-1.0, 2.5, 5.0, [1.0, 2.0] * 25])
def test_others_stay_powers(relax_main, exponent) -> None:
    assert "T.pow" in lower(module(relax_main, exponent), CPU).script()


def test_a_base_that_is_broadcast_stays(relax_main) -> None:
    mod = module(relax_main, np.full((4, 1, 1), 2.0).tolist(), shape=(1, 50))
    assert "T.pow" in lower(mod, CPU).script()


def test_on_a_gpu_too(relax_main) -> None:
    assert "T.pow" not in lower(module(relax_main, 2.0), GPU.to_tvm()).script()

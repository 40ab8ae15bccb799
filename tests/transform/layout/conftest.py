"""Fixtures: bind constant weights to a module, and run a module."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower


@pytest.fixture(scope="session")
def bound():
    """``bound(Module, w=array)``: return the module with these parameters of main as constants."""

    def bind(mod, **arrays):
        params = {name: tvm.runtime.tensor(array) for name, array in arrays.items()}
        return tvm.transform.Sequential(
            [
                relax.transform.BindParams("main", params),
                relax.transform.CanonicalizeBindings(),
            ]
        )(mod)

    return bind


@pytest.fixture(scope="session")
def run():
    """``run(mod, x, ...)``: return the outputs of main on the host, as arrays."""
    target = resolve_target("host", 1).to_tvm(opt_level=0)  # only results matter

    def call(mod, *arrays):
        executable = tvm.compile(lower(mod, target), target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
        result = machine["main"](*(tvm.runtime.tensor(np.array(a, order="C")) for a in arrays))
        return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]

    return call

"""Fixtures: build small Relax modules, and compare modules structurally."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax


@pytest.fixture(scope="session")
def relax_main():
    """``relax_main(body, x=((4, 4), "float32"))``: build a main that returns ``body(emit, x)``."""

    def build(body, **inputs):
        builder = relax.BlockBuilder()
        params = [relax.Var(n, relax.TensorType(s, d)) for n, (s, d) in inputs.items()]
        with builder.function("main", params, {"num_input": len(params)}):
            with builder.dataflow():
                out = builder.emit_output(body(builder.emit, *params))
            builder.emit_func_output(out)
        return builder.get()

    return build


@pytest.fixture(scope="session")
def assert_same():
    """Assert structural equality of two modules, up to aliases and dead bindings."""
    tidy = tvm.transform.Sequential(
        [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(["main"])]
    )

    def check(got, want):
        tvm.ir.assert_structural_equal(tidy(got), tidy(want), map_free_vars=True)

    return check

"""Tests of :mod:`benchmarks.single_calls`: one module per kernel of a lowered network."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from benchmarks.library import arrays_of, library_call
from benchmarks.single_calls import single_calls
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.lower import lower

WEIGHT = np.random.default_rng(0).standard_normal((8, 5), dtype=np.float32)


def _module():
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((3, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            shares = builder.emit(relax.op.nn.softmax(product))
            # Two inputs; one comes from a kernel before the previous one.
            out = builder.emit_output(relax.op.matmul(relax.op.permute_dims(product), shares))
        builder.emit_func_output(out)
    return builder.get()


def test_kernels_in_sequence_compute_the_network(tmp_path):
    target = resolve_target("host", 1)
    calls = single_calls(lower(_module(), target.to_tvm()))
    x = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32)
    product = x @ WEIGHT
    shares = np.exp(product) / np.exp(product).sum(-1, keepdims=True)
    known = {x.shape: [x], (3, 5): [product, shares], (5, 3): [product.T]}
    wanted = [product, shares, product.T, product.T @ shares]
    for number, call in enumerate(calls):
        arrays = [known[shape][-1] for shape, dtype in call.inputs if dtype == "float32"]
        if call.name.startswith(("softmax", "transpose")):
            arrays = [product]
        library = build_library(call.module, target, tmp_path / f"{number}.so", quick=True)
        [found] = arrays_of(library_call(library.path, arrays)())
        matches = [w for w in wanted if w.shape == found.shape and np.allclose(w, found, atol=1e-5)]
        assert matches, call.name
    assert len(calls) == len(wanted)


def test_weights_stay_constants_and_activations_become_inputs():
    first = single_calls(lower(_module(), resolve_target("host", 1).to_tvm()))[0]
    assert first.inputs == [((3, 8), "float32")]
    assert len(first.func.params) == 3  # data, weight, result


def test_a_kernel_with_a_symbolic_shape_is_none_in_the_list():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):  # noqa: N805
            with R.dataflow():
                y = R.exp(x)
                R.output(y)
            return y

    assert single_calls(lower(Before, resolve_target("host", 1).to_tvm())) == [None]


@pytest.mark.parametrize("result", [np.ones(2), [np.ones(2)], (np.ones(2),)])
def test_one_result_or_several(result):
    [found] = arrays_of(result)
    np.testing.assert_array_equal(found, np.ones(2))

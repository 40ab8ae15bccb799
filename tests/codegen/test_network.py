"""Analysis of networks of static shapes."""
# ruff: noqa: N805, SIM108 (a function of a module class has no self, and an If two blocks)

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

from tvmopt.codegen.network import (
    Branch,
    Buffer,
    KernelCall,
    NetworkInput,
    NotStaticError,
    TensorCopy,
    Weight,
    analyse_network,
    flat,
)
from tvmopt.codegen.weights import Weights


@I.ir_module
class Kernels:
    @T.prim_func(s_tir=True)
    def double(x: T.Buffer((2, 3), "float32"), y: T.Buffer((2, 3), "float32")):
        for i, j in T.grid(2, 3):
            y[i, j] = x[i, j] * T.float32(2)


def _module(emit) -> tvm.IRModule:
    """Return a module as it is before memory planning; ``emit`` builds its dataflow."""
    builder = relax.BlockBuilder(Kernels)
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(emit(builder, x))
        builder.emit_func_output(out)
    passes = [relax.transform.ToNonDataflow(), relax.transform.CallTIRRewrite()]
    return tvm.transform.Sequential(passes)(builder.get())


def _double(builder, value):
    kernel = builder.get().get_global_var("double")
    ty = relax.TensorType((2, 3), "float32")
    return builder.emit(relax.call_tir(kernel, (value,), ty))


def test_kernels_in_order_with_their_tensors() -> None:
    constant = np.arange(6, dtype=np.float32).reshape(2, 3)

    def emit(builder, x):
        once = _double(builder, x)
        shared = _double(builder, relax.const(constant))
        again = _double(builder, relax.const(constant.copy()))
        return relax.Tuple([_double(builder, once), shared, again])

    weights = Weights()
    network = analyse_network(_module(emit), "main", weights)
    calls = [step for step in network.steps if isinstance(step, KernelCall)]
    assert [call.arguments[0] for call in calls] == [
        NetworkInput(0), Weight(0), Weight(0), calls[0].arguments[1]
    ]  # fmt: skip
    assert weights.size == 64  # equal constants are one
    assert network.buffers == (24,) * 4
    assert network.results == tuple(calls[i].arguments[1] for i in (3, 1, 2))
    assert network.kernels() == {"double": 2}


def test_outputs_that_are_no_buffer_of_their_own_are_copied() -> None:
    def emit(builder, x):
        y = _double(builder, x)
        return relax.Tuple([x, y, y])

    network = analyse_network(_module(emit), "main", Weights())
    copies = [step for step in network.steps if isinstance(step, TensorCopy)]
    assert [copy.source for copy in copies] == [NetworkInput(0), network.results[1]]
    assert len(set(network.results)) == 3
    assert all(isinstance(result, Buffer) for result in network.results)


def test_the_branches_of_an_if_write_one_buffer() -> None:
    @I.ir_module
    class Choice:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(
            (2, 3), "float32"
        ):
            if c:
                y = x
            else:
                y = R.reshape(x, R.shape([2, 3]))
            return y

    network = analyse_network(Choice, "main", Weights())
    [branch] = network.steps
    assert isinstance(branch, Branch)
    assert branch.condition == NetworkInput(1)
    targets = {step.target for step in flat(network.steps) if isinstance(step, TensorCopy)}
    assert targets == set(network.results)


def test_a_shape_known_at_run_time_needs_the_virtual_machine() -> None:
    @I.ir_module
    class Dynamic:
        @R.function
        def main(x: R.Tensor(("n", 3), "float32")) -> R.Tensor(("n", 3), "float32"):
            return x

    with pytest.raises(NotStaticError, match="known at run time only"):
        analyse_network(Dynamic, "main", Weights())


def test_what_is_no_kernel_needs_the_virtual_machine() -> None:
    with pytest.raises(NotStaticError, match=r"relax\.add is not a kernel"):
        analyse_network(
            _module(lambda builder, x: builder.emit(relax.op.add(x, x))), "main", Weights()
        )

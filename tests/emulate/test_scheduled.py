"""Functions as the policy schedules them for another CPU, run there: the numbers of NumPy.

QEMU before 8.1 dies of vectors of floats made integers, so RISC-V gets vectors of integers alone.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvmopt.arch.target import resolve_target
from tvmopt.emulate import find_tools, run
from tvmopt.policy import schedule_module
from tvmopt.transform.lower import lower


def dense(x, w, b):
    return relax.op.nn.relu(relax.op.matmul(x, w) + b)


def requantised(x, w):
    sums = relax.op.astype(relax.op.matmul(x, w), "float32")
    scaled = relax.op.round(sums * relax.const(np.float32(0.37)))
    return relax.op.astype(relax.op.clip(scaled, -128, 127), "int8")


def softmax_numpy(x):
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def requantised_numpy(x, w):
    scaled = np.rint((x @ w).astype("float32") * np.float32(0.37))
    return np.clip(scaled, -128, 127)


RISCV = '{"mcpu": "generic-rv64", "mattr": ["+m", "+c", "+d", "+zve64x", "+zvl128b"]}'
CPUS = ["cortex-a76", "raspberry-pi-4", "hexagon-v68", RISCV]
CASES = {
    "dense": (dense, lambda x, w, b: np.maximum(x @ w + b, 0),
              [((5, 16), "float32"), ((16, 40), "float32"), ((40,), "float32")], "register_tile"),
    "softmax": (relax.op.nn.softmax, softmax_numpy, [((4, 37), "float32")], "row_reduction"),
    "requantised": (requantised, requantised_numpy, [((5, 16), "int32"), ((16, 40), "int32")],
                    "register_tile"),
}  # fmt: skip


def scheduled(build, operands, spec):
    """The one function that ``build(*operands)`` is lowered to, and the rule that scheduled it."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{n}", relax.TensorType(shape, dtype))
        for n, (shape, dtype) in enumerate(operands)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(result)
    mod, rules = schedule_module(lower(builder.get(), spec.to_tvm()), spec.arch())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    [rule] = rules.values()
    return func.with_attr("global_symbol", "main"), rule


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cpu", CPUS)
def test_numbers(cpu, case):
    spec = resolve_target(cpu, 2)
    tools = find_tools(spec.isa)
    if isinstance(tools, str):
        pytest.skip(tools)
    build, expected, operands, template = CASES[case]
    func, rule = scheduled(build, operands, spec)
    assert rule == template
    lib = tvm.tirx.build(tvm.IRModule({"main": func}), target=spec.to_tvm())
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(shape, np.float32) if dtype == "float32"
        else rng.integers(-8, 8, shape, dtype)
        for shape, dtype in operands
    ]  # fmt: skip
    right = expected(*inputs)
    result = np.zeros(right.shape, "int8" if case == "requantised" else "float32")
    [got] = run(lib, inputs, [result], spec.isa)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)

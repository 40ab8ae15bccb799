"""Functions scheduled for another CPU run under QEMU, and equal NumPy.

QEMU before 8.1 crashes on vector conversions from float to integer, so RISC-V gets integer vectors
only. LLVM takes a minute for Hexagon float vectors, so Hexagon gets one small float case.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.emulator import find_tools, run
from tvmopt.device.llvm import pass_config
from tvmopt.device.target import resolve_target
from tvmopt.kernels.module_schedules import schedule_module
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
PRODUCTS = [
    ("cortex-a76", "int8", "int8", "sdot"),
    ("cortex-a76", "uint8", "uint8", "udot"),
    ("graviton3", "uint8", "int8", "usdot"),
    ("hexagon-v68", "uint8", "int8", "vrmpy"),
    ("hexagon-v68", "uint8", "uint8", "vrmpy"),
    ("hexagon-v68", "int8", "int8", "vrmpy"),
    ("riscv64-rvv", "uint8", "int8", "vwmulsu"),
    ("riscv64-rvv", "int8", "int8", "vwmul"),
    ("spacemit-k1", "uint8", "uint8", "vwmulu"),
]
CASES = {
    "dense": (dense, lambda x, w, b: np.maximum(x @ w + b, 0),
              [((5, 16), "float32"), ((16, 40), "float32"), ((40,), "float32")], "register_tile"),
    "softmax": (relax.op.nn.softmax, softmax_numpy, [((4, 37), "float32")], "row_reduction"),
    "requantised": (requantised, requantised_numpy, [((5, 16), "int32"), ((16, 40), "int32")],
                    "register_tile"),
}  # fmt: skip


def scheduled(build, operands, spec):
    """Return the one function that ``build(*operands)`` lowers to, scheduled, and its template."""
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


def compiled(func, spec):
    with tvm.transform.PassContext(config=pass_config(spec.isa)):
        return tvm.tirx.build(tvm.IRModule({"main": func}), target=spec.to_tvm())


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cpu", CPUS)
def test_results(cpu, case):
    spec = resolve_target(cpu, 2)
    tools = find_tools(spec.isa)
    if isinstance(tools, str):
        pytest.skip(tools)
    build, expected, operands, template = CASES[case]
    func, rule = scheduled(build, operands, spec)
    assert rule == template
    lib = compiled(func, spec)
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


@pytest.mark.sample(4)
@pytest.mark.parametrize("columns", [96, 90])
@pytest.mark.parametrize(("cpu", "data", "weight", "instruction"), PRODUCTS)
def test_int8_matmul(cpu, data, weight, instruction, columns):
    spec = resolve_target(cpu, 2)
    tools = find_tools(spec.isa)
    if isinstance(tools, str):
        pytest.skip(tools)

    def matmul(x, w):
        return relax.op.matmul(x, w, out_dtype="int32")

    func, rule = scheduled(matmul, [((7, 64), data), ((64, columns), weight)], spec)
    assert rule == "register_tile"
    lib = compiled(func, spec)
    assert re.search(rf"\b{instruction}\b", lib.inspect_source("asm"))
    rng = np.random.default_rng(0)
    x, w = (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for shape, dtype in (((7, 64), data), ((64, columns), weight))
    )
    longer = "rv64,v=true,vext_spec=v1.0,vlen=256" if cpu == "spacemit-k1" else ""
    [got] = run(lib, [x, w], [np.zeros((7, columns), "int32")], spec.isa, cpu=longer)
    np.testing.assert_array_equal(got, x.astype("int32") @ w.astype("int32"))

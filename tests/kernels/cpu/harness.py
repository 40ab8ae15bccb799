"""Lower operators, schedule them, and compare with the unscheduled functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.emit import emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.lower import lower as lower_module

ARCH = CpuArch("x86-64", "x86_64", 2, 512, 32, 48 * 1024, 2 * 1024 * 1024)
NARROW = CpuArch("haswell", "x86_64", 4, 256, 16, 32 * 1024, 256 * 1024)
# Code is compiled for the host, whatever CPU the schedule was made for.
_HOST = {"kind": "llvm", **dict(tvm.target.Target.from_device("cpu").attrs)}
TARGET = tvm.target.Target(_HOST)
# Only results matter, and LLVM's optimisations take half of the compile time.
_QUICK = tvm.target.Target({**_HOST, "opt-level": 0})

Operand = tuple[tuple[int, ...], str]


def lower(build: Callable[..., relax.Expr], operands: Sequence[Operand]) -> tvm.IRModule:
    """Lower ``build(*operands)`` to fused TensorIR functions."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{n}", relax.TensorType(shape, dtype))
        for n, (shape, dtype) in enumerate(operands)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(result)
    return lower_module(builder.get(), TARGET)


def matmul(rows: int, depth: int, columns: int, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return a lowered matmul with a constant weight."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, depth), "float32"))
    w = relax.Var("w", relax.TensorType((depth, columns), "float32"))
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    [func] = [
        f for _, f in lower_module(builder.get(), target).functions_items()
        if isinstance(f, tirx.PrimFunc)
    ]  # fmt: skip
    return func


def values(operands: Sequence[Operand], seed: int = 0) -> list[np.ndarray]:
    """Draw random inputs; integers are small and not negative, as valid indices."""
    rng = np.random.default_rng(seed)
    made = []
    for shape, dtype in operands:
        if dtype == "bool":
            made.append(rng.random(shape) > 0.5)
        elif dtype.startswith("float"):
            made.append(rng.standard_normal(shape).astype(dtype))
        else:
            made.append(rng.integers(0, 4, shape).astype(dtype))
    return made


def run(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile ``mod`` and run its ``main``."""
    with _QUICK:
        executable = tvm.compile(mod, _QUICK)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(x) for x in inputs))
    return [t.numpy() for t in (result if not hasattr(result, "numpy") else [result])]


def check(
    build: Callable[..., relax.Expr],
    operands: Sequence[Operand],
    arch: CpuArch = ARCH,
    template: str | None = None,
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Schedule ``build``, and assert equal results; return the module and the templates.

    Each function gets its top-1 schedule, or the schedule of ``template``.
    """
    mod = lower(build, operands)
    if template is None:
        scheduled, rules = schedule_module(mod, arch)
    else:
        scheduled, rules = apply_template(mod, template, arch), {}
    inputs = values(operands)
    for got, expected in zip(run(scheduled, inputs), run(mod, inputs), strict=True):
        assert_close(got, expected)
    return scheduled, rules


def apply_template(mod: tvm.IRModule, template: str, arch: CpuArch = ARCH) -> tvm.IRModule:
    """Schedule each TensorIR function of ``mod`` by ``template``, which must accept it."""
    out = mod.clone()
    for var, func in prim_funcs(mod).items():
        schedule = emit(func, default_config(template, arch))
        out[mod.get_global_var(var)] = finish(schedule.mod["main"], func)
    return out


def default_config(template: str, arch: CpuArch) -> CpuHint:
    """The configuration of ``template`` with the default of each field."""
    return by_name()[template].config_type(template, arch)


def prim_funcs(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return the TensorIR functions of ``mod`` by name."""
    return {
        var.name_hint: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def assert_close(got: np.ndarray, expected: np.ndarray) -> None:
    """Assert equality up to rounding, relative to the largest value: reductions are reordered."""
    assert got.dtype == expected.dtype
    if not np.issubdtype(expected.dtype, np.floating) and expected.dtype != ml_dtypes.bfloat16:
        np.testing.assert_array_equal(got, expected)
        return
    scale = float(np.abs(expected.astype("float64")).max(initial=1e-3))
    tolerance = 2e-2 if expected.dtype.itemsize == 2 else 2e-5
    np.testing.assert_allclose(
        got.astype("float64"), expected.astype("float64"), rtol=0, atol=tolerance * scale
    )


def loop_kinds(mod: tvm.IRModule) -> set[str]:
    """Return the kinds of loops in ``mod``: ``parallel``, ``vectorized``, ``unroll``."""
    text = "".join(func.script() for func in prim_funcs(mod).values())
    return {kind for kind in ("parallel", "vectorized", "unroll") if f"T.{kind}(" in text}

"""Build many candidates of one function into one library, run them, and compare the results."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from tests.kernels.cpu.drawn import Drawn
from tests.kernels.cpu.harness import assert_close, default_config
from tvmopt import host
from tvmopt.device.cpu import CpuArch
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.families import families_of
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure.split import split_packing
from tvmopt.transform.lower import lower

THREADS = 2


@dataclasses.dataclass(frozen=True)
class Cpu:
    """A CPU descriptor for scheduling, and a target for compilation."""

    name: str
    arch: CpuArch
    target: Target


def cpus() -> list[Cpu]:
    """Return CPUs with wide and narrow vectors, one thread and two; code for all runs here."""
    spec = resolve_target("host", THREADS)
    narrow = resolve_target("haswell", THREADS) if host.isa() == "x86_64" else spec
    if narrow.missing_on_host():
        narrow = spec
    wide = dataclasses.replace(spec.arch(), simd_bits=512, vector_registers=32)
    small = dataclasses.replace(narrow.arch(), simd_bits=256, vector_registers=16)
    # A lower optimisation level halves the compile time; the schedules are the same.
    return [
        Cpu("512 bits, 2 threads", wide, spec.to_tvm(opt_level=1)),
        Cpu("512 bits, 1 thread", dataclasses.replace(wide, cores=1), spec.to_tvm(opt_level=1)),
        Cpu("256 bits, 2 threads", small, narrow.to_tvm(opt_level=1)),
    ]


@dataclasses.dataclass(frozen=True)
class Case:
    """One function of a drawn module, with inputs and the expected result.

    Attributes:
        func: The function.
        inputs: Values of all arguments except the last.
        expected: Result of NumPy; None if the unscheduled function is the reference.
    """

    func: tirx.PrimFunc
    inputs: list[np.ndarray]
    expected: np.ndarray | None


def lowered(drawn: Drawn, target: Target) -> tvm.IRModule:
    """Lower ``drawn`` to a module; constants are its last arguments."""
    order = sorted(range(len(drawn.operands)), key=lambda n: drawn.operands[n].constant)
    params = {
        n: relax.Var(f"x{n}", relax.TensorType(drawn.operands[n].shape, drawn.operands[n].dtype))
        for n in order
    }
    builder = relax.BlockBuilder()
    inputs = sum(not operand.constant for operand in drawn.operands)
    with builder.function("main", list(params.values()), {"num_input": inputs}):
        with builder.dataflow():
            result = drawn.build(*(params[n] for n in range(len(params))))
            out = builder.emit_output(builder.normalize(result))
        builder.emit_func_output(out)
    return lower(builder.get(), target)


def cases(drawn: Drawn, target: Target, seed: int = 0) -> list[Case]:
    """Return the functions that ``drawn`` lowers to; weights are marked as constants."""
    mod = lowered(drawn, target)
    values = {
        f"x{n}": _values(operand.shape, operand.dtype, seed + n, drawn.coarse)
        for n, operand in enumerate(drawn.operands)
    }
    found = {var.name_hint: f for var, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    calls = _calls(mod)
    if len(calls) == 1 and drawn.numpy is not None:
        [(name, arguments)] = calls
        if all(argument in values for argument in arguments):
            wide = [values[f"x{n}"].astype("float64") for n in range(len(drawn.operands))]
            expected = np.asarray(drawn.numpy(*wide))
            return [Case(found[name], [values[argument] for argument in arguments], expected)]
    return [
        Case(
            func,
            [
                _values(tuple(int(e) for e in p.shape), str(p.dtype), seed + n, drawn.coarse)
                for n, p in enumerate(func.params[:-1])
            ],
            None,
        )
        for func in found.values()
    ]


def _calls(mod: tvm.IRModule) -> list[tuple[str, list[str]]]:
    """Return each call of a TensorIR function: its name and the names of its arguments."""
    calls: list[tuple[str, list[str]]] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            names = [getattr(arg, "name", "") for arg in expr.args[1].fields]
            calls.append((expr.args[0].name_hint, names))

    relax.analysis.post_order_visit(mod["main"], visit)
    return calls


def _values(shape: tuple[int, ...], dtype: str, seed: int, coarse: bool) -> np.ndarray:
    """Draw 8-bit integers from the whole range, other integers as valid indices."""
    rng = np.random.default_rng(seed)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if "float" not in dtype:
        return rng.integers(0, 4, shape).astype(dtype)
    values = rng.standard_normal(shape)
    values = np.round(values) if coarse else values
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def chosen_hints(func: tirx.PrimFunc, arch: CpuArch) -> list[CpuHint]:
    """Return the first, middle and last ranked hint of every template, and one without a tile."""
    ranked = [r.hint for r in DefaultPolicy(func, arch).ranked]
    hints: dict[CpuHint, None] = {}
    for name in (family.name for family in families_of(arch)):
        own = [hint for hint in ranked if hint.template == name]
        for place in (0, len(own) // 2, -1) if own else ():
            hints[own[place]] = None
        hints[default_config(name, arch)] = None
    return list(hints)


def check_numbers(
    case: Case, candidates: Sequence[tirx.PrimFunc], target: Target, split: bool = True
) -> None:
    """Assert that each candidate computes ``case.expected``, with and without weight prepacking.

    Args:
        case: The function, its inputs and its expected result.
        candidates: The scheduled functions.
        target: Target to compile for.
        split: Whether to also run each candidate with its weight packing split off.
    """
    functions = {"reference": case.func}
    packed: dict[int, tuple[int, ...]] = {}
    for n, candidate in enumerate(candidates):
        functions[f"whole{n}"] = finish(candidate, case.func)
        parts = split_packing(functions[f"whole{n}"])
        if split and parts.packer is not None:
            functions |= {f"compute{n}": parts.compute, f"packer{n}": parts.packer}
            packed[n] = parts.packed
    module = tvm.IRModule(
        {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    )
    built = tvm.tirx.build(module, target=target, pipeline="s_tir")
    out = case.func.params[-1]
    shape, dtype = tuple(int(e) for e in out.shape), str(out.dtype)

    def run(name: str, arguments: list[Any]) -> np.ndarray:
        # Overwrite old contents, so that a missing store shows.
        result = tvm.runtime.tensor(np.full(shape, 77).astype(dtype))
        built[name](*arguments, result)
        return result.numpy()

    tensors = [tvm.runtime.tensor(array) for array in case.inputs]
    expected = run("reference", tensors)
    if case.expected is not None:
        assert_close(expected, case.expected.reshape(shape).astype(dtype))
    for n in range(len(candidates)):
        assert_close(run(f"whole{n}", tensors), expected)
        if n not in packed:
            continue
        outputs = [
            tvm.runtime.empty(tuple(int(e) for e in buffer.shape), str(buffer.dtype))
            for buffer in functions[f"packer{n}"].params[len(packed[n]) :]
        ]
        built[f"packer{n}"](*(tensors[i] for i in packed[n]), *outputs)
        arguments = list(tensors)
        for i, tensor in zip(packed[n], outputs, strict=True):
            arguments[i] = tensor
        assert_close(run(f"compute{n}", arguments), expected)


@pytest.fixture(scope="module")
def two_threads() -> Iterator[concurrent.futures.Executor]:
    """Return a thread in which kernels run on two cores, so that a data race can show.

    TVM's thread pool belongs to the calling thread, and reads the variable when it starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TVM_NUM_THREADS", str(THREADS))
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            assert executor.submit(tvm.runtime.num_threads).result() == THREADS
            yield executor

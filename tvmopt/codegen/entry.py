"""Ahead-of-time executor: one function that calls all kernels of a network, on planned memory.

::

    main(x, y):                                   # inputs, outputs
      workspace = alloc(4096)
      matmul(&x, &weights[0], &workspace[0])
      relu(&workspace[0], &y)

TVM's virtual machine takes 1 to 2 us for each kernel: it packs and checks arguments, allocates the
outputs and frees them. A call here is a jump.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.codegen.entry_source import CALL, NETWORK, segment_name
from tvmopt.codegen.kernel_objects import KernelFunction, declarations, separate_kernels
from tvmopt.codegen.memory_plan import plan_memory
from tvmopt.codegen.network import (
    Branch,
    Buffer,
    NetworkInput,
    SegmentCall,
    StaticNetwork,
    Step,
    Tensor,
    TensorCopy,
    Weight,
    analyse_network,
)
from tvmopt.codegen.timestamps import TAKE_TIME, timed_steps
from tvmopt.codegen.weights import WEIGHTS_SYMBOL, Weights
from tvmopt.kernels.passes.raw_pointers import EXPORTED, INTERNAL, PRIVATE
from tvmopt.runtime.executor import MAIN

# TVM allocates up to 1024 bytes on the stack, where they are not aligned to a cache line.
_LEAST_WORKSPACE_BYTES = 2048
_FIRST_WEIGHT, _IS_TRUE = "tvmopt_first_weight", "tvmopt_is_true"
_FUNCTIONS = f"""\
@{WEIGHTS_SYMBOL} = external hidden constant i8, align 64
define linkonce_odr hidden ptr @{_FIRST_WEIGHT}() alwaysinline {{
  ret ptr @{WEIGHTS_SYMBOL}
}}
define linkonce_odr hidden i1 @{_IS_TRUE}(ptr %flag) alwaysinline {{
  %value = load i8, ptr %flag
  %true = icmp ne i8 %value, 0
  ret i1 %true
}}
"""


@dataclasses.dataclass(frozen=True)
class AheadOfTime:
    """A network to compile ahead of time.

    Attributes:
        entry: The entry functions, and the kernels where ``separate`` is empty.
        separate: The kernels by name (:mod:`tvmopt.codegen.kernel_objects`).
        networks: The network of each entry function by name.
    """

    entry: tvm.IRModule
    separate: dict[str, KernelFunction]
    networks: dict[str, StaticNetwork]


def ahead_of_time(mod: tvm.IRModule, weights: Weights, *, timed: bool = False) -> AheadOfTime:
    """Return the kernels of a module with an entry function for each of its Relax functions.

    Args:
        mod: Module after ``relax.transform.CallTIRRewrite``.
        weights: Gets the constants.
        timed: Whether ``main`` takes the time around each step
            (:mod:`tvmopt.codegen.timestamps`).

    Raises:
        NotStaticError: As :func:`~tvmopt.codegen.network.analyse_network`.
    """
    networks = {
        var.name_hint: analyse_network(mod, var.name_hint, weights)
        for var, func in mod.functions_items()
        if isinstance(func, relax.Function)
    }
    called = sorted(set().union(*(network.kernels() for network in networks.values())))
    kernels = {
        name: mod[name].with_attrs({"global_symbol": name, "tirx.noalias": True}) for name in called
    }
    separate = separate_kernels(kernels)
    symbols = {name: kernel.symbol for name, kernel in separate.items()}
    functions: dict[str, tirx.PrimFunc] = {}
    for name, network in networks.items():
        body = _calls(network, symbols, timed=timed and name == MAIN)
        inner = _with_parameters(network, NETWORK + name, body)
        functions[NETWORK + name] = inner.with_attr(INTERNAL, EXPORTED)
        functions[name] = _with_parameters(network, name, _enter(name))
    if not separate:
        functions |= {name: one.with_attr(INTERNAL, PRIVATE) for name, one in kernels.items()}
    return AheadOfTime(tvm.IRModule(functions), separate, networks)


def _with_parameters(
    network: StaticNetwork, name: str, emit: Callable[[list[tirx.Var]], None]
) -> tirx.PrimFunc:
    """Return a function ``name`` with the inputs and outputs of ``network`` as parameters.

    Args:
        network: The network.
        name: Name of the function.
        emit: Emits the body, given the parameters.
    """
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(name)
        # TVM's code generator gives all functions of a module the attribute of one of them.
        build.func_attr({"global_symbol": name, "tirx.noalias": True})
        types = [*network.inputs, *network.outputs]
        shapes = [[int(extent) for extent in ty.shape.values] for ty in types]
        emit(
            [
                build.arg(f"p{i}", build.buffer(shape, str(ty.dtype)))
                for i, (shape, ty) in enumerate(zip(shapes, types, strict=True))
            ]
        )
    return builder.get()


def _enter(name: str) -> Callable[[list[tirx.Var]], None]:
    """Return the body of a function for callers in TVM's runtime, such as a board's server."""

    def emit(parameters: list[tirx.Var]) -> None:
        _call(tirx.call_extern("int32", CALL + name, *(p.data for p in parameters)))

    return emit


def _calls(
    network: StaticNetwork, symbols: Mapping[str, str], *, timed: bool
) -> Callable[[list[tirx.Var]], None]:
    """Return the body that calls the kernels of ``network``.

    Args:
        network: The network.
        symbols: Symbol of each kernel that is in another object file, by name.
        timed: Whether to take times around the kernels.
    """
    plan = plan_memory(network, network.results)
    pointers = network.kernels()
    outer = {symbols[name]: count for name, count in pointers.items() if name in symbols}
    functions = _FUNCTIONS + declarations(outer)

    def emit(parameters: list[tirx.Var]) -> None:
        outside: dict[Tensor, tirx.Var] = {
            NetworkInput(i): buffer for i, buffer in enumerate(parameters[: len(network.inputs)])
        }
        outside |= dict(zip(network.results, parameters[len(network.inputs) :], strict=True))
        with build.attr(0, "pragma_import_llvm", functions):
            size = max(plan.size, _LEAST_WORKSPACE_BYTES)
            workspace = build.alloc_buffer((size,), "uint8", scope="global")

            def address(tensor: Tensor) -> Expr:
                if isinstance(tensor, Weight):
                    first = tirx.call_extern("handle", _FIRST_WEIGHT)
                    return tirx.handle_add_byte_offset(first, tensor.offset)
                if isinstance(tensor, Buffer) and tensor in plan.offsets:
                    return tirx.handle_add_byte_offset(workspace.data, plan.offsets[tensor])
                return outside[tensor].data

            numbers = {id(step): at for at, step in enumerate(timed_steps(network))}
            _emit(network, network.steps, address, numbers if timed else {}, symbols)

    return emit


def _emit(
    network: StaticNetwork,
    steps: Sequence[Step],
    address: Callable[[Tensor], Expr],
    timed: Mapping[int, int],
    symbols: Mapping[str, str],
) -> None:
    """Emit the steps.

    Args:
        network: The network.
        steps: What it does, or a branch of it.
        address: Returns where a tensor lies.
        timed: Number of each timed step by the ``id`` of the step.
        symbols: As of :func:`_calls`.
    """
    for step in steps:
        if id(step) in timed:
            _take_time(2 * timed[id(step)])
        if isinstance(step, TensorCopy):
            size = tirx.IntImm("int64", network.buffers[step.target.number])
            pair = address(step.target), address(step.source)
            build.evaluate(tirx.call_extern("handle", "memcpy", *pair, size))
        elif isinstance(step, Branch):
            with build.If(tirx.call_extern("bool", _IS_TRUE, address(step.condition))):
                with build.Then():
                    _emit(network, step.then, address, timed, symbols)
                with build.Else():
                    _emit(network, step.otherwise, address, timed, symbols)
        elif isinstance(step, SegmentCall):
            name = segment_name(step)
            _call(tirx.call_extern("int32", name, *map(address, step.arguments)))
        else:
            name = symbols.get(step.kernel, step.kernel)
            _call(tirx.call_extern("int32", name, *map(address, step.arguments)))
        if id(step) in timed:
            _take_time(2 * timed[id(step)] + 1)


def _take_time(place: int) -> None:
    """Emit a call that stores the time at ``place`` of the timestamps."""
    build.evaluate(tirx.call_extern("int32", TAKE_TIME, tirx.IntImm("int32", place)))


def _call(code: Expr) -> None:
    """Emit a call; if it fails, the function fails."""
    with build.If(code != 0), build.Then():
        build.evaluate(tirx.call_intrin("int32", "tirx.tvm_throw_last_error"))

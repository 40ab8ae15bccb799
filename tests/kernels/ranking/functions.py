"""Functions and CPUs for the tests of the ranking."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tvm
from tvm import relax, s_tir, tirx

from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.kernels.analysis import Access, BlockFacts, block_facts, leaf_blocks
from tvmopt.transform.lower import lower

# A CPU by name, with fitted bandwidths, so that the tests do not depend on the machine.
SPEC: TargetSpec = resolve_target("skylake-avx512", 2)
ARCH = dataclasses.replace(
    SPEC.arch(), l1_bandwidth=64.0, l2_bandwidth=48.0, l3_bandwidth=20.0, dram_bandwidth=8.0
)


def module(build: Callable[..., relax.Expr], *shapes: tuple[int, ...]) -> tvm.IRModule:
    """Lower ``build`` of an input and of weights, the other arguments."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{n}", relax.TensorType(s, "float32")) for n, s in enumerate(shapes)]
    with builder.function("main", params, {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(out)
    return lower(builder.get(), SPEC.to_tvm())


def function(build: Callable[..., relax.Expr], *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    """Return the only function that ``build`` lowers to."""
    mod = module(build, *shapes)
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return func


def convolution(
    size: int = 14,
    channels: int = 16,
    outputs: int = 64,
    kernel: int = 3,
    batch: int = 1,
    **settings: object,
) -> tirx.PrimFunc:
    """A 2-d convolution in NHWC."""
    groups = int(str(settings.get("groups", 1)))
    return function(
        lambda x, w: relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", **settings),
        (batch, size, size, channels),
        (kernel, kernel, channels // groups, outputs),
    )


def matmul(rows: int = 64, depth: int = 48, columns: int = 96) -> tirx.PrimFunc:
    """A matmul with a constant weight."""
    return function(relax.op.matmul, (rows, depth), (depth, columns))


def reads(func: tirx.PrimFunc) -> tuple[BlockFacts, tuple[Access, ...]]:
    """Return the facts and reads of the only reduction."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    [facts] = [f for f in (block_facts(sch, b) for b in leaf_blocks(sch)) if f.reduction]
    return facts, facts.reads

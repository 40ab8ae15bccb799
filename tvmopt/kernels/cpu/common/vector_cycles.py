"""Cost model of loop nests without a register tile: vector instructions of every block.

A block costs the floating-point instructions of its body, for every vector of its iterations.
Address arithmetic, loads and stores run on other ports and are not counted.
"""

from __future__ import annotations

import dataclasses

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx

from tvmopt.device import dtypes
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import block_facts, leaf_blocks, variables
from tvmopt.kernels.cpu.common.stage import busy_cores
from tvmopt.kernels.cpu.passes.bfloat16_rounding import has_rounding
from tvmopt.kernels.cpu.passes.vector_math import is_exp_of_difference, max_buffers_of
from tvmopt.kernels.workload import Workload

# Vector instructions of the functions of vector_math, counted in x86 assembly; a division counts as
# _DIVISION.
_INSTRUCTIONS = {"exp": 27.0, "sigmoid": 38.0, "tanh": 25.0, "erf": 25.0, "pow": 20.0,
                 "sqrt": 10.0, "rsqrt": 20.0}  # fmt: skip
_EXP_OF_DIFFERENCE = 12.0
# A vector division takes the cycles of so many multiplications: 512 bits on Zen 4 (AMD, publication
# 57647).
_DIVISION = 10.0
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select, tirx.Cast)
# Vector instructions that round float32 to bfloat16 on a CPU without an instruction for it.
_ROUNDING = 8.0


@dataclasses.dataclass(frozen=True)
class _Block:
    """A leaf block.

    Attributes:
        work: Number of iterations.
        instructions: Floating-point vector instructions of an iteration.
        dtype: The widest dtype in the body.
        rounds: Whether it stores bfloat16 that is computed in float32.
    """

    work: int
    instructions: float
    dtype: str
    rounds: bool


def vector_cycles(workload: Workload, arch: CpuArch) -> float:
    """Return the predicted cycles of the busiest core for all blocks of ``workload``.

    Dependent instructions leave ports idle, so that a core issues as many per cycle as it has ports
    for FMAs, although x86 CPUs have others for integers and shuffles.
    """
    blocks = workload.analysed(_blocks) or ()
    rounding = 0.0 if has_rounding(arch) else _ROUNDING
    instructions = sum(
        b.work / arch.lanes(b.dtype) * (b.instructions + rounding * b.rounds) for b in blocks
    )
    return instructions / arch.peak_fmas / busy_cores(sum(b.work for b in blocks), arch)


def _blocks(func: tirx.PrimFunc) -> tuple[_Block, ...]:
    sch = s_tir.Schedule(IRModule({"main": func}))
    max_buffers = max_buffers_of(func)
    made = []
    for block in leaf_blocks(sch):
        facts = block_facts(sch, block)
        inner = next((axis.var for axis in reversed(facts.axes) if axis.extent > 1), None)
        count = 0.0 if inner is None else _instructions(sch.get(block).body, inner, max_buffers)
        rounds = (str(facts.write.buffer.dtype), facts.dtype) == ("bfloat16", "float32")
        made.append(_Block(facts.work, count, facts.dtype, rounds))
    return tuple(made)


def _instructions(body: tirx.Stmt, inner: tirx.Var, max_buffers: set[tirx.Var]) -> float:
    """Return the floating-point vector instructions of an iteration of ``body``.

    Args:
        body: Body of a block.
        inner: The innermost axis; an expression that does not depend on it is computed per row.
        max_buffers: Buffers with results of max reductions.
    """
    count = 0.0

    def add(expr: ir.Expr, instructions: float) -> None:
        nonlocal count
        operand = expr.value if isinstance(expr, tirx.Cast) else expr
        if (_is_float(expr) or _is_float(operand)) and inner in variables(expr):
            count += instructions

    def on_division(division: tirx.Div) -> None:
        add(division, _DIVISION)

    def on_call(call: ir.Call) -> None:
        name = getattr(call.op, "name", "").rpartition(".")[2]
        below = is_exp_of_difference(call, max_buffers)
        add(call, _EXP_OF_DIFFERENCE if below else _INSTRUCTIONS.get(name, 0.0))

    tvm_ffi.structural_walk(
        body,
        [
            *((kind, lambda expr: add(expr, 1.0)) for kind in _ARITHMETIC),
            (tirx.Div, on_division),
            (ir.Call, on_call),
        ],
        order="post",
    )
    return count


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype) in dtypes.FLOATS

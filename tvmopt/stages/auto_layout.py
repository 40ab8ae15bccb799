"""Which layout the convolutions of a graph should have: the one that is modelled to be fastest."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax

from tvmopt.arch.target import TargetSpec
from tvmopt.policy.graph_cost import modelled_cycles
from tvmopt.transform.lower import lower

# Channels innermost first: where the model finds no difference, kernels have been found better.
_LAYOUTS = ("NHWC", "NCHW")
_CONVOLUTIONS = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")


def choose_layout(convert: Callable[[str], tvm.IRModule], target: TargetSpec) -> str:
    """The best layout for the whole graph, layout changes at its edges included.

    Args:
        convert: Gives the module in a layout.
        target: Target that it is compiled for.
    """
    plain = convert("NCHW")
    if not _has_convolutions(plain):
        return "NCHW"
    llvm, arch = target.to_tvm(), target.arch()
    cycles = {
        layout: modelled_cycles(lower(plain if layout == "NCHW" else convert(layout), llvm), arch)
        for layout in _LAYOUTS
    }
    return min(_LAYOUTS, key=lambda layout: cycles[layout])


def _has_convolutions(mod: tvm.IRModule) -> bool:
    found: list[relax.Call] = []

    def look(expr: relax.Expr) -> None:
        op = expr.op if isinstance(expr, relax.Call) else None
        if isinstance(op, tvm.ir.Op) and op.name in _CONVOLUTIONS:
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], look)
    return bool(found)

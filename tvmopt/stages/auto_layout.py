"""Choose the layout of a graph's convolutions.

The cost model predicts the whole graph in each layout, with the layout conversions at its edges.
When the predictions are close, the compiled networks are timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tvm
from tvm import relax

from tvmopt.device.target import TargetSpec
from tvmopt.forked import forked
from tvmopt.kernels.graph_cost import modelled_cycles
from tvmopt.stages.network_timing import measured_seconds
from tvmopt.transform.lower import lower

# NHWC first: on equal predicted cycles, its kernels measured faster.
_LAYOUTS = ("NHWC", "NCHW")
_CONVOLUTIONS = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")
# Layouts within this ratio of the lowest predicted cycles are timed.
_CLOSE = 1.3


@dataclasses.dataclass(frozen=True)
class ChosenLayout:
    """A layout, and the network lowered in it.

    Attributes:
        name: The layout.
        lowered: The module as :func:`~tvmopt.transform.lower.lower` returns it for the target; None
            where nothing had to be lowered to choose.
    """

    name: str
    lowered: tvm.IRModule | None = None


def choose_layout(convert: Callable[[str], tvm.IRModule], target: TargetSpec) -> ChosenLayout:
    """Return the best layout for the whole graph.

    Args:
        convert: Converts the module to a layout.
        target: Target to compile for; networks are timed only if this machine runs its code.
    """
    plain = convert("NCHW")
    if not _has_convolutions(plain):
        return ChosenLayout("NCHW")
    llvm, arch = target.to_tvm(), target.arch()
    if arch.layout:
        return ChosenLayout(arch.layout)

    def lower_to(layout: str) -> tvm.IRModule:
        return lower(plain if layout == "NCHW" else convert(layout), llvm)

    first, other = _LAYOUTS
    with forked(lambda: modelled_cycles(lower_to(other), arch)) as other_cycles:
        lowered = {first: lower_to(first)}
        cost = {first: modelled_cycles(lowered[first], arch), other: other_cycles()}
    close = [layout for layout in _LAYOUTS if cost[layout] <= _CLOSE * min(cost.values())]
    lowered |= {layout: lower_to(layout) for layout in close if layout not in lowered}
    if len(close) > 1 and not target.missing_on_host():
        cost = measured_seconds({layout: lowered[layout] for layout in close}, target)
    best = min(close, key=lambda layout: cost[layout])
    return ChosenLayout(best, lowered[best])


def _has_convolutions(mod: tvm.IRModule) -> bool:
    found: list[relax.Call] = []

    def look(expr: relax.Expr) -> None:
        op = expr.op if isinstance(expr, relax.Call) else None
        if isinstance(op, tvm.ir.Op) and op.name in _CONVOLUTIONS:
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], look)
    return bool(found)

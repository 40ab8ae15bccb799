"""Implementation plan: layout and algorithm of each layer.

The ``convert`` stage uses one layout for all convolutions. A plan is finer: a tuner measures
several implementations of each layer, and the build uses the combination that is fastest for the
network.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvmopt.errors import ConfigError
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.layout import convert_layout_with_report
from tvmopt.transform.layout.layouts import cannot, parse_layouts
from tvmopt.transform.winograd import WinogradRule

# Attribute of ``main``: layers without a requested layout, which a tuner may choose.
_FREE_ATTR = "tvmopt.free_layouts"
#: Attribute of a TensorIR function: layer index, while a lowering records layers.
LAYER_ATTR = "tvmopt.layer"
#: Direct convolution.
DIRECT = "direct"
#: Output tile size of Winograd's algorithm, by name.
WINOGRAD = {f"winograd{m}": m for m in MATRICES}
ALGORITHMS = (DIRECT, *WINOGRAD)
# The algorithm by its tile size; 0 is no Winograd.
_BY_TILE = {0: DIRECT} | {tile: name for name, tile in WINOGRAD.items()}
# Cache line size in bytes: a block of channels fills one line.
_LINE = 64


@dataclasses.dataclass(frozen=True, order=True)
class Implementation:
    """One implementation of a layer.

    Attributes:
        layout: Data layout, ``"NHWC"`` or ``"NCHW64c"``; empty for the module's layout.
        algorithm: One of ``ALGORITHMS``; empty for the cost model's choice.
    """

    layout: str = ""
    algorithm: str = ""

    def __post_init__(self) -> None:
        if self.algorithm and self.algorithm not in ALGORITHMS:
            raise ConfigError(
                f"algorithm must be one of {', '.join(ALGORITHMS)}, but got {self.algorithm!r}"
            )

    def __str__(self) -> str:
        return " ".join(part for part in (self.layout, self.algorithm) if part) or "as converted"


Plan = Mapping[int, Implementation]
"""An implementation by layer number; layers that are not named stay as they are."""


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan as JSON."""
    rows = {str(layer): dataclasses.asdict(chosen) for layer, chosen in sorted(plan.items())}
    path.write_text(json.dumps({"layers": rows}, indent=2) + "\n")


def read_plan(path: Path) -> dict[int, Implementation]:
    """Read the file of :func:`write_plan`; return an empty plan when it does not exist."""
    if not path.exists():
        return {}
    rows: dict[str, Any] = json.loads(path.read_text())["layers"]
    return {int(layer): Implementation(**fields) for layer, fields in rows.items()}


def free_layouts(mod: tvm.IRModule, kept: Collection[int] = ()) -> None:
    """Mark on ``mod`` that a tuner may choose the layouts of all layers except ``kept``."""
    free = [anchor.index for anchor in anchors(mod) if anchor.index not in kept]
    mod["main"] = mod["main"].with_attr(_FREE_ATTR, free)


def implementations(
    mod: tvm.IRModule, rule: WinogradRule | None
) -> dict[int, list[Implementation]]:
    """Return the implementations of each convolution of ``mod``, the module's layout first.

    Other layouts appear only where the user requested none. Layers with a single implementation are
    omitted.

    Args:
        mod: A converted module.
        rule: Winograd rule of the target; None without Winograd.
    """
    free = {int(layer) for layer in (mod["main"].attrs or {}).get(_FREE_ATTR, [])}
    found: dict[int, list[Implementation]] = {}
    for anchor in anchors(mod):
        if anchor.op != "nn.conv2d":
            continue
        several = found.setdefault(anchor.index, [])
        tiles = (0, *(rule.sizes_of(anchor.call) if rule else ()))
        own = [Implementation("", _BY_TILE[tile]) for tile in tiles]
        others = _layouts(anchor) if anchor.index in free else ()
        for implementation in (*own, *(Implementation(layout) for layout in others)):
            if implementation not in several:
                several.append(implementation)
    return {layer: several for layer, several in found.items() if len(several) > 1}


def modelled_plan(mod: tvm.IRModule, rule: WinogradRule | None) -> dict[int, Implementation]:
    """Return the algorithms that :func:`~tvmopt.transform.lower.lower` selects by cost model.

    Args:
        mod: A converted module.
        rule: Winograd rule of the target; None without Winograd.
    """
    own = PlanWinograd({}, rule)
    return {
        anchor.index: Implementation("", _BY_TILE[own.tile(anchor)])
        for anchor in anchors(mod)
        if anchor.op == "nn.conv2d"
    }


def _layouts(anchor: Anchor) -> Iterator[str]:
    """Return the other layouts that a convolution supports.

    Candidates are NHWC, and NCHWc with blocks that fill a cache line.
    """
    call = anchor.call
    blocked = f"NCHW{_LINE // tvm_ffi.dtype(str(call.args[0].ty.dtype)).itemsize}c"
    for layout in ("NHWC", blocked):
        parsed = parse_layouts({"nn.conv2d": layout})["nn.conv2d"]
        if layout != str(call.attrs.data_layout) and cannot(call, parsed) is None:
            yield layout


def in_planned_layouts(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return ``mod`` with its layers in the layouts of ``plan``; layer indices do not change.

    Args:
        mod: A simplified module.
        plan: The plan.
    """
    layouts = sorted({chosen.layout for chosen in plan.values() if chosen.layout})
    for layout in layouts:
        meant = {layer for layer, chosen in plan.items() if chosen.layout == layout}
        others = [a.index for a in anchors(mod) if a.index not in meant]
        mod = convert_layout_with_report(mod, {"nn.conv2d": layout}, skip_layers=others).mod
    return mod


@tvm.transform.module_pass(opt_level=0, name="PlanWinograd")
class PlanWinograd:
    """Rewrite convolutions to Winograd's algorithm by plan, or else by cost model.

    before -> after: ``conv2d(x, w)`` -> ``call_tir(conv2d_winograd, (x, transformed w))``.

    Args:
        plan: The plan.
        rule: Cost model and rewrite of the target; None for direct convolutions only.
        modelled: Whether the cost model decides about layers without a planned algorithm.
        mark: Whether to store the layer index on its TensorIR function, as ``LAYER_ATTR``.
    """

    def __init__(
        self,
        plan: Plan,
        rule: WinogradRule | None,
        *,
        modelled: bool = True,
        mark: bool = False,
    ) -> None:
        self._plan, self._modelled, self._mark, self._rule = plan, modelled, mark, rule

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        tiles = {
            anchor.var: (m, {LAYER_ATTR: anchor.index} if self._mark else {})
            for anchor in anchors(mod)
            if (m := self.tile(anchor))
        }
        if self._rule is None or not tiles:
            return mod
        rewrite = _UseWinograd(mod, tiles, self._rule)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        return rewrite.builder_.get()

    def tile(self, anchor: Anchor) -> int:
        """Return the Winograd output tile size of a layer; 0 for direct convolution."""
        if anchor.op != "nn.conv2d" or self._rule is None:
            return 0
        algorithm = self._plan.get(anchor.index, Implementation()).algorithm
        if algorithm:
            tile = WINOGRAD.get(algorithm, 0)
            return tile if tile in self._rule.sizes_of(anchor.call) else 0
        return self._rule.tile(anchor.call) if self._modelled else 0


@mutator
class _UseWinograd(BoundCallMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        tiles: dict[relax.Var, tuple[int, dict[str, int]]],
        rule: WinogradRule,
    ) -> None:
        super().__init__(mod)
        self._tiles, self._rule = tiles, rule

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        if var not in self._tiles:
            return None
        m, marks = self._tiles[var]
        return self._rule.rewrite(self.builder_, self.visit_expr_post_order(call), m, marks)

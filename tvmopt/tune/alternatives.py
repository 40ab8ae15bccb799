"""Enumerate alternative implementations of each layer, and select the best combination.

A convolution has several implementations: direct or Winograd, in the module's layout or in a
blocked channel layout (NCHWc). Each implementation is a function that is measured on its own.
Layouts couple neighbouring layers: a layout conversion between them is a kernel, which is measured
as well. The selection therefore minimises the total latency over all layers together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tvm import IRModule, tirx
from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.transform.anchors import anchors
from tvmopt.transform.layer_functions import lower_by_layer
from tvmopt.transform.layer_graph import (
    FIXED,
    Link,
    change_between,
    change_module,
    forms_of,
    layer_links,
)
from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.lower import lower, winograd_rule
from tvmopt.transform.plan import Implementation, implementations, modelled_plan
from tvmopt.tune.assignment import minimise, total_cost
from tvmopt.tune.database import workload_hash
from tvmopt.tune.tasks import Task, extract_tasks, network_bytes, task_of

#: Name of the plan that needs no measurement: the module's layout, algorithms by cost model.
MODELLED = "as modelled"
# Implementations predicted to be slower than the layer's best by this factor are not measured.
_HOPELESS = 2.0
# Fractions of a task's candidate budget for alternative implementations and for layout conversions:
# late candidates seldom win there.
_OTHER_IMPLEMENTATIONS, _CHANGES = 0.5, 0.25


@dataclasses.dataclass(frozen=True)
class LayerImplementation:
    """One implementation of one layer.

    Attributes:
        layer: Index of the layer.
        name: Name of the layer.
        implementation: Layout and algorithm.
        workload: Workload hash of the function.
        cycles: Predicted cycles.
        hopeless: Whether the predicted cycles are too high for a measurement.
    """

    layer: int
    name: str
    implementation: Implementation
    workload: str
    cycles: float
    hopeless: bool


@dataclasses.dataclass(frozen=True)
class Contender:
    """An implementation plan for the whole network.

    Attributes:
        name: ``"uniform"`` with a layout, ``"combined"``, or :data:`MODELLED`.
        plan: Implementation of each layer.
        predicted_us: Sum of the measured latencies of layers and layout conversions, in
            microseconds.
        exact: Whether the plan is proven to minimise ``predicted_us``; only for ``"combined"``.
    """

    name: str
    plan: dict[int, Implementation]
    predicted_us: float
    exact: bool = False


@dataclasses.dataclass(frozen=True)
class Alternatives:
    """Alternative implementations of a module's layers, as tasks to measure.

    Attributes:
        implementations: Implementations of all layers that have several.
        tasks: Functions to tune: the module's own functions, the alternative implementations, and
            layout conversions.
        network_bytes: Size in bytes of the weights of the module's own functions.
        links: Tensors between the layers.
        forms: Layout transform of each layout name; the empty name is the module's own layout.
        changes: Workload hash of the function that converts a link's tensor between two layouts.
        modelled: The plan of the cost model, for use without measurements.
    """

    implementations: tuple[LayerImplementation, ...]
    tasks: tuple[Task, ...]
    network_bytes: int
    links: tuple[Link, ...]
    forms: dict[str, LayoutForm]
    changes: dict[tuple[Link, str, str], str]
    modelled: dict[int, Implementation] = dataclasses.field(default_factory=dict)

    @property
    def task_groups(self) -> tuple[tuple[str, ...], ...]:
        """Groups of names of tasks that are alternatives to each other."""
        name_of = {task.workload: task.name for task in self.tasks}
        group_of: dict[str, set[str]] = {}
        for layer in {one.layer for one in self.implementations}:
            group = {
                w.workload for w in self.implementations if w.layer == layer and not w.hopeless
            }
            for workload in tuple(group):
                group |= group_of.get(workload, set())
            group_of |= dict.fromkeys(group, group)
        groups = {tuple(sorted(name_of[w] for w in group)) for group in group_of.values()}
        return tuple(sorted(group for group in groups if len(group) > 1))

    def contenders(self, latency_us: Mapping[str, float]) -> list[Contender]:
        """Return the best plan per uniform layout, the cost model's plan and the best combination.

        Args:
            latency_us: Measured latency in microseconds by workload hash.

        Returns:
            The plans, each once, ordered by predicted latency. A layer without a measured latency
            is in none of them, and stays as converted.
        """
        layouts = sorted({one.implementation.layout for one in self.implementations})
        problem = _Problem(self, latency_us)
        found = [
            Contender(f"uniform {layout or 'as converted'}", *problem.uniform(layout))
            for layout in layouts
        ]
        modelled = problem.given(self.modelled)
        if modelled is not None and all(modelled[0] != c.plan for c in found):
            found.append(Contender(MODELLED, *modelled))
        starts = [c.plan for c in found]
        combined = Contender("combined", *problem.best(starts))
        same = [c for c in found if c.plan == combined.plan]
        if same:
            found[found.index(same[0])] = dataclasses.replace(same[0], exact=combined.exact)
        else:
            found.append(combined)
        distinct = [c for n, c in enumerate(found) if all(c.plan != d.plan for d in found[:n])]
        return sorted(distinct, key=lambda c: c.predicted_us)


def find_alternatives(mod: IRModule, target: Target, arch: Arch) -> Alternatives | None:
    """Return the alternative implementations of a converted module; None when no layer has any.

    Args:
        mod: A converted module.
        target: Target to compile for.
        arch: The CPU.
    """
    rule = winograd_rule(mod, target)
    found = implementations(mod, rule)
    if not found:
        return None
    functions: dict[tuple[int, Implementation], IRModule] = {}
    for first in sorted({each for several in found.values() for each in several}):
        plan = {n: first if first in several else several[0] for n, several in found.items()}
        lowered = lower_by_layer(mod, target, plan)
        alone = _functions_of(lowered.mod, lowered.layer_of)
        functions |= {(n, chosen): alone[n] for n, chosen in plan.items() if n in alone}
    names = {anchor.index: anchor.name for anchor in anchors(mod)}
    ranked = _ranked(functions, names, arch)
    kept = [one for one in ranked if not one.hopeless]
    if len({one.layer for one in kept}) == len(kept):
        return None
    tasks = {task.workload: task for task in extract_tasks(lower(mod, target), target)}
    own_bytes = network_bytes(tasks.values())
    for one in kept:
        if one.workload not in tasks:
            alone_mod = functions[one.layer, one.implementation]
            calls = sum(one.workload == other.workload for other in kept)
            name = f"{one.name} {one.implementation}"
            task = task_of(name, alone_mod, calls)
            tasks[one.workload] = dataclasses.replace(task, effort=_OTHER_IMPLEMENTATIONS)
    links, forms, changes = _changes(mod, kept, target, tasks)
    ordered = sorted(tasks.values(), key=lambda task: (-task.weight * task.flops, task.name))
    modelled = modelled_plan(mod, rule)
    return Alternatives(tuple(ranked), tuple(ordered), own_bytes, links, forms, changes, modelled)


def _functions_of(mod: IRModule, layer_of: Mapping[str, int]) -> dict[int, IRModule]:
    return {
        layer_of[var.name_hint]: IRModule({"main": func.with_attr("global_symbol", "main")})
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and var.name_hint in layer_of
    }


def _ranked(
    functions: Mapping[tuple[int, Implementation], IRModule],
    names: Mapping[int, str],
    arch: Arch,
) -> list[LayerImplementation]:
    """Return the implementations with their predicted cycles."""
    modelled: dict[str, float] = {}
    hashes = {key: workload_hash(mod) for key, mod in functions.items()}
    for key, mod in functions.items():
        if hashes[key] not in modelled:
            modelled[hashes[key]] = DefaultPolicy(mod["main"], arch).cycles
    cheapest: dict[int, float] = {}
    for (layer, _), text in hashes.items():
        cheapest[layer] = min(modelled[text], cheapest.get(layer, math.inf))
    return [
        LayerImplementation(
            layer,
            names[layer],
            implementation,
            hashes[layer, implementation],
            modelled[hashes[layer, implementation]],
            modelled[hashes[layer, implementation]] > _HOPELESS * cheapest[layer],
        )
        for layer, implementation in sorted(functions)
    ]


def _changes(
    mod: IRModule, kept: Iterable[LayerImplementation], target: Target, tasks: dict[str, Task]
) -> tuple[tuple[Link, ...], dict[str, LayoutForm], dict[tuple[Link, str, str], str]]:
    """Return links, layout transforms and conversion functions; add the latter to ``tasks``."""
    layouts: dict[int, set[str]] = {}
    for one in kept:
        layouts.setdefault(one.layer, set()).add(one.implementation.layout)
    several = {layout for found in layouts.values() for layout in found} - {""}
    if not several:
        return (), {}, {}
    links = tuple(layer_links(mod, layouts))
    forms = {"": LayoutForm.identity(4)} | forms_of(mod, several)
    changes: dict[tuple[Link, str, str], str] = {}
    known: dict[tuple[object, ...], str | None] = {}
    for link in links:
        for source in layouts.get(link.source, {""}):
            for wanted in layouts.get(link.target, {""}):
                key = (link.shape, link.dtype, source, wanted)
                if source == wanted:
                    continue
                if key not in known:
                    known[key] = _change_task(link, source, wanted, forms, target, tasks)
                text = known[key]
                if text is not None:
                    changes[link, source, wanted] = text
    return links, forms, changes


def _change_task(
    link: Link,
    source: str,
    wanted: str,
    forms: Mapping[str, LayoutForm],
    target: Target,
    tasks: dict[str, Task],
) -> str | None:
    """Return the hash of a layout conversion; None when no data moves or no conversion exists."""
    module = change_module(link.shape, link.dtype, forms[source], forms[wanted])
    if module is None:
        return None
    [task] = extract_tasks(lower(module, target), target)
    text = task.workload
    shape = "x".join(map(str, link.shape))
    name = f"{source or 'own layout'} to {wanted or 'own layout'} of {shape} {link.dtype}"
    tasks.setdefault(text, dataclasses.replace(task, name=name, effort=_CHANGES))
    return text


class _Problem:
    """Costs of layouts per layer and per link; each layer takes its fastest algorithm."""

    def __init__(self, alternatives: Alternatives, latency_us: Mapping[str, float]) -> None:
        self._best: dict[int, dict[str, tuple[float, Implementation]]] = {}
        self._measured: dict[tuple[int, Implementation], float] = {}
        for one in alternatives.implementations:
            us = math.inf if one.hopeless else latency_us.get(one.workload, math.inf)
            self._measured[one.layer, one.implementation] = us
            layouts = self._best.setdefault(one.layer, {})
            layout = one.implementation.layout
            if math.isfinite(us) and us < layouts.get(layout, (math.inf, one.implementation))[0]:
                layouts[layout] = us, one.implementation
        self._layers = [layer for layer in sorted(self._best) if self._best[layer]]
        self._layouts = [sorted(self._best[layer]) for layer in self._layers]
        self._unary = [
            [self._best[layer][layout][0] for layout in layouts]
            for layer, layouts in zip(self._layers, self._layouts, strict=True)
        ]
        self._pairwise: dict[tuple[int, int], np.ndarray] = {}
        for link in alternatives.links:
            self._add(link, alternatives, latency_us)

    def _add(self, link: Link, alternatives: Alternatives, latency_us: Mapping[str, float]) -> None:
        ends = [self._layers.index(e) if e in self._layers else FIXED for e in _ends(link)]
        if ends == [FIXED, FIXED]:
            return
        rows, columns = ([""] if e == FIXED else self._layouts[e] for e in ends)
        table = np.array(
            [[_cost(link, s, t, alternatives, latency_us) for t in columns] for s in rows]
        )
        if FIXED in ends:
            [node] = [e for e in ends if e != FIXED]
            for choice, cost in enumerate(table.ravel()):
                self._unary[node][choice] += float(cost)
            return
        i, j = ends
        if i > j:
            i, j, table = j, i, table.T
        self._pairwise[i, j] = self._pairwise.get((i, j), 0.0) + table

    def uniform(self, layout: str) -> tuple[dict[int, Implementation], float]:
        """Return the plan with ``layout`` wherever a layer supports it, and its latency."""
        choice = [
            layouts.index(layout if layout in layouts else layouts[0]) for layouts in self._layouts
        ]
        return self._plan(choice), total_cost(choice, self._unary, self._pairwise)

    def given(
        self, plan: Mapping[int, Implementation]
    ) -> tuple[dict[int, Implementation], float] | None:
        """Return a plan in the module's layout, and its latency; None if a layer is unmeasured."""
        own = {layer: plan[layer] for layer in self._layers if layer in plan}
        costs = [self._measured.get(item, math.inf) for item in own.items()]
        if len(own) < len(self._layers) or not math.isfinite(sum(costs)):
            return None
        return own, sum(costs)

    def best(
        self, starts: Sequence[Mapping[int, Implementation]]
    ) -> tuple[dict[int, Implementation], float, bool]:
        """Return the plan of least predicted latency, and whether it is provably minimal."""
        begin = [
            [
                layouts.index(start[layer].layout)
                for layer, layouts in zip(self._layers, self._layouts, strict=True)
            ]
            for start in starts
        ]
        found = minimise(self._unary, self._pairwise, begin)
        return self._plan(found.choice), found.cost, found.exact

    def _plan(self, choice: Sequence[int]) -> dict[int, Implementation]:
        return {
            layer: self._best[layer][layouts[c]][1]
            for layer, layouts, c in zip(self._layers, self._layouts, choice, strict=True)
        }


def _ends(link: Link) -> tuple[int, int]:
    return link.source, link.target


def _cost(
    link: Link,
    source: str,
    wanted: str,
    alternatives: Alternatives,
    latency_us: Mapping[str, float],
) -> float:
    """Return the latency in microseconds of converting a link's tensor between two layouts."""
    if source == wanted:
        return 0.0
    text = alternatives.changes.get((link, source, wanted))
    if text is not None:
        return latency_us.get(text, math.inf)
    forms = alternatives.forms
    possible = change_between(link.shape, forms[source], forms[wanted])
    return 0.0 if possible is not None else math.inf

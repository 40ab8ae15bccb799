"""What the layers of a model may be: dtypes with predicted times and errors, and choices of them.

The time of a choice is the sum of the layers' times and of the changes of dtype between
neighbouring layers. Its accuracy loss is the sum of the errors of single layers. A Lagrange
multiplier weighs the two: for each multiplier, variable elimination finds the choice of least
``time + multiplier * loss``. Multipliers from 0 to infinity give choices from the fastest one to
float32.

Source of the multiplier: Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers", IEEE TASSP 36(9), 1988. It reaches the choices on the convex hull of time and loss.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.device import dtypes as dtype_table
from tvmopt.quantize.analysis import Costs, is_convertible
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layer_times import FLOAT, LayerTimes
from tvmopt.tune.assignment import minimise, total_cost

# Multipliers between the two that decide every layer by time alone and by error alone.
_MULTIPLIERS = 128
_DECADES = 6.0
# The predicted ratio of a dtype to float32 counts like two timed layers: one or two of them, timed
# on a busy machine, must not rule a dtype out for all layers.
_PREDICTED_SCALES = [1.0, 1.0]


@dataclasses.dataclass(frozen=True)
class LayerChoice:
    """What a layer may be: its dtypes, float32 first, with the time and the error of each."""

    index: int
    name: str
    dtypes: tuple[str, ...]
    seconds: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def half(self) -> int:
        """The position of the 16-bit float that the layer can have; 0 where there is none."""
        for at, (dtype, error) in enumerate(zip(self.dtypes, self.errors, strict=True)):
            if dtype in dtype_table.HALF_FLOATS and math.isfinite(error):
                return at
        return 0

    @property
    def never(self) -> tuple[int, ...]:
        """The position of float32 where the layer can have a 16-bit float; else nothing."""
        return (0,) if self.half else ()


def layer_choices(costs: Costs, times: LayerTimes) -> list[LayerChoice]:
    """Return the choices of all layers that some dtype can convert.

    A layer's float32 time is the measured one, or the predicted one times the median ratio of
    measured to predicted times. Times in other dtypes have the ratio to float32 that was measured,
    or the predicted one times the median ratio of the two over the timed layers, where the
    prediction counts like two of them. These are the timed layers that the roofline bounds alike,
    by compute or by memory, if there are any. Timed layers do not make one that was not timed
    slower than both float32 and its prediction: a few timed on a busy machine would rule a dtype
    out for all.
    """
    by_layer: dict[int, list[str]] = {}
    for (index, dtype), cost in costs.items():
        if is_convertible(cost):
            by_layer.setdefault(index, []).append(dtype)
    modelled = {
        index: {
            dtype: times.seconds.get((index, dtype), 0.0) for dtype in (FLOAT, *by_layer[index])
        }
        for index in by_layer
    }
    timed = {
        index: cost.float_latency_s
        for (index, _), cost in costs.items()
        if cost.float_latency_s is not None
    }
    scales: dict[str, dict[int, float]] = {}  # measured time over the modelled one, by dtype
    for i, base in timed.items():
        if modelled.get(i, {}).get(FLOAT):
            scales.setdefault(FLOAT, {})[i] = base / modelled[i][FLOAT]
    for (i, dtype), cost in costs.items():
        if cost.latency_s is not None and scales.get(FLOAT, {}).get(i) and modelled[i][dtype]:
            ratio = cost.latency_s / modelled[i][dtype] / scales[FLOAT][i]
            scales.setdefault(dtype, {})[i] = ratio
    choices = []
    for index, dtypes in sorted(by_layer.items()):
        base = timed.get(
            index, modelled[index][FLOAT] * _scale(scales, FLOAT, index, times.compute_bound)
        )
        seconds, errors = [base], [0.0]
        for dtype in dtypes:
            cost = costs[index, dtype]
            if cost.latency_s is not None and cost.float_latency_s:
                ratio = cost.latency_s / cost.float_latency_s
            elif modelled[index][FLOAT]:
                ratio = modelled[index][dtype] / modelled[index][FLOAT]
                scale = _scale(scales, dtype, index, times.compute_bound)
                ratio = min(max(1.0, ratio), ratio * scale)
            else:
                ratio = 1.0
            seconds.append(base * ratio)
            errors.append(cost.error)
        name = costs[index, dtypes[0]].name
        choices.append(LayerChoice(index, name, (FLOAT, *dtypes), tuple(seconds), tuple(errors)))
    return choices


def _scale(
    scales: Mapping[str, Mapping[int, float]], dtype: str, index: int, bounded: Collection[int]
) -> float:
    """Return the median over timed layers that the roofline bounds alike; over all if none is."""
    known = scales.get(dtype, {})
    alike = [scale for i, scale in known.items() if (i in bounded) == (index in bounded)]
    found = alike or [*known.values()]
    if dtype != FLOAT:
        found += _PREDICTED_SCALES
    return statistics.median(found) if found else 1.0


def dtype_changes(
    graph: Graph, choices: Sequence[LayerChoice], bandwidth: float
) -> dict[tuple[int, int], np.ndarray]:
    """Return the seconds of a change of dtype between neighbouring layers.

    A tensor whose reader has another dtype is read once more and stored once more.

    Args:
        graph: The float model.
        choices: The layers.
        bandwidth: Memory bandwidth in bytes per second.

    Returns:
        For positions ``i < j`` in ``choices``, a table ``[dtype of i, dtype of j]``.
    """
    position = {choice.name: at for at, choice in enumerate(choices)}
    changes: dict[tuple[int, int], np.ndarray] = {}
    for node in graph.nodes:
        if node.name not in position:
            continue
        i = position[node.name]
        elements = math.prod(graph.dims(node.output[0]) or (0,))
        for reader in _next_layers(graph, node, position):
            j = position[reader]
            pair, first, second = (i, j), choices[i].dtypes, choices[j].dtypes
            table = np.array([[_bytes_of_change(a, b) for b in second] for a in first])
            if j < i:
                pair, table = (j, i), table.T
            if i != j:
                changes[pair] = changes.get(pair, 0.0) + table * elements / bandwidth
    return changes


def pareto_choices(
    choices: Sequence[LayerChoice], changes: Mapping[tuple[int, int], np.ndarray]
) -> list[tuple[int, ...]]:
    """Return distinct choices, from the fastest one to float32; errors fall, times rise.

    Each is a position in ``LayerChoice.dtypes`` for every layer. A layer that can have a 16-bit
    float is float32 in the last choice alone, where all layers are: the 16-bit float is faster, and
    float32 among such layers costs changes of dtype.
    """
    if not choices:
        return [()]
    seconds = sum(max(choice.seconds) for choice in choices)
    error = sum(max(e for e in choice.errors if math.isfinite(e)) for choice in choices)
    middle = math.log10(seconds / error) if seconds > 0 and error > 0 else 0.0
    found: dict[tuple[int, ...], None] = {}
    for multiplier in (0.0, *np.logspace(middle - _DECADES, middle + _DECADES, _MULTIPLIERS)):
        unary = [
            [
                math.inf if at in choice.never or not math.isfinite(e) else s + multiplier * e
                for at, (s, e) in enumerate(_pairs(choice))
            ]
            for choice in choices
        ]
        found.setdefault(minimise(unary, changes, starts=list(found)[-1:]).choice)
    found.pop(plain := (0,) * len(choices), None)
    return [*found, plain]


def with_choices_between(
    candidates: Sequence[tuple[int, ...]],
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
) -> list[tuple[int, ...]]:
    """Return the choices of the convex hull with those between each two that follow each other.

    The hull can be sparse: with changes of dtype, one choice of it may have most layers in int8,
    and the next one few. No layer is float32 beside 16-bit floats: all layers are, or none.
    """
    halves = any(choice.never for choice in choices)
    found: list[tuple[int, ...]] = []
    for fast, accurate in itertools.pairwise(candidates):
        found.append(fast)
        if any(accurate) or not halves:
            found += between(fast, accurate, choices, changes)
    return [*found, candidates[-1]]


def between(
    fast: Sequence[int],
    accurate: Sequence[int],
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
) -> list[tuple[int, ...]]:
    """Return choices between two that follow each other on the convex hull, the fastest first.

    Layers take their dtype of the accurate choice one after the other, those with the largest error
    for the time that they save first. Choices that are no faster than the accurate one are left
    out: changes of dtype can cost more than the layers save.
    """
    differing = [i for i, (a, b) in enumerate(zip(fast, accurate, strict=True)) if a != b]

    def price(i: int) -> float:
        saved = choices[i].seconds[accurate[i]] - choices[i].seconds[fast[i]]
        lost = choices[i].errors[fast[i]] - choices[i].errors[accurate[i]]
        return lost / saved if saved > 0 else math.inf

    limit = total_seconds(accurate, choices, changes)
    current, found = list(fast), []
    for i in sorted(differing, key=price, reverse=True)[:-1]:
        current[i] = accurate[i]
        if total_seconds(current, choices, changes) < limit:
            found.append(tuple(current))
    return found


def total_seconds(
    choice: Sequence[int],
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
) -> float:
    """Return the predicted seconds of all layers and of the changes of dtype between them."""
    return total_cost(choice, [c.seconds for c in choices], changes)


def _pairs(choice: LayerChoice) -> Iterator[tuple[float, float]]:
    return zip(choice.seconds, choice.errors, strict=True)


def _bytes_of_change(one: str, other: str) -> float:
    """Return the bytes per element of a change of dtype."""
    sizes = dtype_table.itemsize(one), dtype_table.itemsize(other)
    return 0.0 if one == other else float(sum(sizes))


def _next_layers(graph: Graph, node: onnx.NodeProto, layers: Mapping[str, object]) -> Iterator[str]:
    """Yield the layers that read a node's result, also through other operators."""
    pending, seen = list(node.output), set(node.output)
    while pending:
        for reader in graph.consumers.get(pending.pop(), []):
            if reader.name in layers:
                yield reader.name
                continue
            new = [name for name in reader.output if name not in seen]
            seen.update(new)
            pending += new

"""Choose a dtype for each layer: the least predicted time that meets the accuracy bar.

The time of a choice is the sum of the layers' times and of the changes of dtype between
neighbouring layers. Its accuracy loss is the sum of the errors of single layers. A Lagrange
multiplier weighs the two: for each multiplier, variable elimination finds the choice of least
``time + multiplier * loss``. Multipliers from 0 to infinity give choices from the fastest one to
float32. Errors do not add up exactly, so bisection over these choices, and then between two of
them, measures the model with all layers converted together, after a correction of its biases for
these dtypes (:mod:`.mixed_biases`). The fastest choice that meets the bar wins.

Source of the multiplier: Shoham and Gersho, "Efficient bit allocation for an arbitrary set of
quantizers", IEEE TASSP 36(9), 1988. It reaches the choices on the convex hull of time and loss.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.device import dtypes as dtype_table
from tvmopt.quantize.analysis import Analysis, Costs, is_convertible
from tvmopt.quantize.dtype_map import DtypeMap, fastest, half_layers, whole_model_dtype
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.loss_bound import loss_bound
from tvmopt.quantize.mixed_biases import MixedBiases
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.roofline import LayerRoofline, LayerWork
from tvmopt.tune.assignment import minimise, total_cost

_FLOAT = "float32"
# Multipliers between the two that decide every layer by time alone and by error alone.
_MULTIPLIERS = 128
_DECADES = 6.0


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


def choose_layer_dtypes(
    analysis: Analysis,
    costs: Costs,
    works: Mapping[int, LayerWork | None],
    peaks: LayerRoofline,
    deadline: float,
) -> list[DtypeMap]:
    """Return the maps that were measured; one of them meets the bar, float32 if no other does.

    The fastest one that meets the bar has its biases.

    Args:
        analysis: The analysis.
        costs: Error of each layer and dtype, and seconds where they were measured.
        works: Work of each layer by index, for layers that were not timed.
        peaks: Peaks of the target.
        deadline: Value of ``time.monotonic()`` after which no new measurement starts.
    """
    choices = layer_choices(costs, works, peaks)
    changes = dtype_changes(analysis.setting.graph, choices, peaks.bandwidth)
    measure = _Measure(analysis, choices, changes)
    _search(choices, changes, measure, deadline)
    best = fastest(measure.found)
    return [
        found if found is best else dataclasses.replace(found, biases={}) for found in measure.found
    ]


def _search(
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
    measure: _Measure,
    deadline: float,
) -> None:
    """Measure choices until the fastest one that meets the bar is known, or time runs out."""
    candidates = pareto_choices(choices, changes)
    # Where the fastest choice meets the bar, nothing else needs to be measured.
    if len(candidates) == 1 or measure(candidates[0], deadline).holds:
        return
    at = _bisected(candidates, measure, deadline)
    if any(choice.never for choice in choices) and at == len(candidates) - 1:
        # No layer is float32 beside 16-bit floats: all layers are, or none.
        measure.accept_halves(deadline)
        return
    if at > 0:
        finer = between(candidates[at - 1], candidates[at], choices, changes)
        _bisected([candidates[at - 1], *finer, candidates[at]], measure, deadline)


def _bisected(candidates: Sequence[tuple[int, ...]], measure: _Measure, deadline: float) -> int:
    """Measure choices between the first, which misses the bar, and the last, which meets it.

    Returns:
        The position of the first choice that is known to meet the bar.
    """
    low, high = 0, len(candidates) - 1
    while high - low > 1 and time.monotonic() < deadline:
        middle = (low + high) // 2
        if measure(candidates[middle], deadline).holds:
            high = middle
        else:
            low = middle
    return high


def layer_choices(
    costs: Costs, works: Mapping[int, LayerWork | None], peaks: LayerRoofline
) -> list[LayerChoice]:
    """Return the choices of all layers that some dtype can convert.

    A layer's float32 time is the measured one, or the roofline time times the median ratio of
    measured to roofline times. Times in other dtypes have the ratio to float32 that was measured,
    or that of the rooflines.
    """
    by_layer: dict[int, list[str]] = {}
    for (index, dtype), cost in costs.items():
        if is_convertible(cost):
            by_layer.setdefault(index, []).append(dtype)
    modelled = {
        index: {dtype: peaks.seconds(work, dtype) for dtype in (_FLOAT, *by_layer[index])}
        if (work := works.get(index)) is not None
        else dict.fromkeys((_FLOAT, *by_layer[index]), 0.0)
        for index in by_layer
    }
    timed = {
        index: cost.float_latency_s
        for (index, _), cost in costs.items()
        if cost.float_latency_s is not None
    }
    ratios = [timed[i] / modelled[i][_FLOAT] for i in timed if modelled.get(i, {}).get(_FLOAT)]
    scale = statistics.median(ratios) if ratios else 1.0
    choices = []
    for index, dtypes in sorted(by_layer.items()):
        base = timed.get(index, scale * modelled[index][_FLOAT])
        seconds, errors = [base], [0.0]
        for dtype in dtypes:
            cost = costs[index, dtype]
            if cost.latency_s is not None and cost.float_latency_s:
                ratio = cost.latency_s / cost.float_latency_s
            elif modelled[index][_FLOAT]:
                ratio = modelled[index][dtype] / modelled[index][_FLOAT]
            else:
                ratio = 1.0
            seconds.append(base * ratio)
            errors.append(cost.error)
        name = costs[index, dtypes[0]].name
        choices.append(LayerChoice(index, name, (_FLOAT, *dtypes), tuple(seconds), tuple(errors)))
    return choices


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


def emulated(
    model: onnx.ModelProto, quantizer: Quantizer | None, by_name: Mapping[str, str]
) -> onnx.ModelProto:
    """Return the model with its layers in their dtypes, for ONNX Runtime.

    Args:
        model: The float model.
        quantizer: Its quantizer; needed where layers have dtype int8.
        by_name: dtype of each layer that some dtype can convert, by node name.
    """
    if "int8" in by_name.values():
        assert quantizer is not None
        model = quantizer([name for name, dtype in by_name.items() if dtype != "int8"])
    for dtype in sorted(set(by_name.values()) & set(dtype_table.HALF_FLOATS)):
        model = cast_layers(model, dtype, {name for name, d in by_name.items() if d == dtype})
    return model


class _Measure:
    """Measure the model with all layers in chosen dtypes; ``found`` holds every map so far."""

    def __init__(
        self,
        analysis: Analysis,
        choices: Sequence[LayerChoice],
        changes: Mapping[tuple[int, int], np.ndarray],
    ) -> None:
        setting = analysis.setting
        self._analysis, self._choices, self._changes = analysis, choices, changes
        self._quantizer: Quantizer | None = None
        self._mixed_biases: MixedBiases | None = None
        self._biases_s = 0.0  # that the last correction of biases took
        self.found = [self.float_model()]
        if setting.ranges is not None:
            self._quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)

    def __call__(self, choice: Sequence[int], deadline: float) -> DtypeMap:
        pairs = list(zip(self._choices, choice, strict=True))
        by_name = {c.name: c.dtypes[at] for c, at in pairs}
        by_index = {c.index: c.dtypes[at] for c, at in pairs if at}
        ranges = self._corrected(by_name, deadline)
        setting, quantizer = self._analysis.setting, self._quantizer
        if ranges is not None:
            quantizer = Quantizer(setting.model, ranges, setting.scheme)
        model = emulated(setting.model, quantizer, by_name)
        judged = self._analysis.judge(model, whole_model_dtype(by_name.values()), deadline)
        found = DtypeMap(
            layers=tuple(by_index),
            dtypes=tuple(by_index.values()),
            predicted_s=total_seconds(choice, self._choices, self._changes),
            # The cosine loss is half the error power.
            predicted_loss=sum(c.errors[at] for c, at in pairs) / 2,
            cosine=judged.accuracy.cosine,
            agreement=judged.accuracy.agreement,
            drop=judged.accuracy.drop,
            samples=judged.accuracy.samples,
            holds=judged.holds,
            mean_loss=judged.mean_loss,
            loss_bound=loss_bound(judged.losses),
            biases={} if ranges is None else {**ranges.biases, **ranges.half_biases},
        )
        self.found.append(found)
        self._tell(found)
        return found

    def _corrected(self, by_name: Mapping[str, str], deadline: float) -> Ranges | None:
        """Return ranges with biases for these dtypes; None where the calibration's biases stay.

        They stay where all layers are int8, where the calibration did not fit layers, and where
        time is short.
        """
        setting = self._analysis.setting
        dtypes = set(by_name.values())
        if setting.ranges is None or not setting.ranges.roundings or "int8" not in dtypes:
            return None
        start = time.monotonic()
        if len(dtypes) < 2 or start + self._biases_s > deadline:
            return None
        if self._mixed_biases is None:
            inputs = [batch.inputs for batch in self._analysis.batches]
            self._mixed_biases = MixedBiases(setting.model, setting.ranges, inputs, setting.scheme)
        found = self._mixed_biases(by_name)
        self._biases_s = time.monotonic() - start
        return found

    def accept_halves(self, deadline: float) -> None:
        """Measure all layers in 16-bit floats, which must not be shown to lose more than allowed.

        Few samples cannot show with 95% confidence that a drop is within the limit, even one of
        rounding to 16 bits. The drop itself then decides.
        """
        found = self([c.half for c in self._choices], deadline)
        was_measured = found.samples == sum(b.valid for b in self._analysis.batches)
        if not found.holds and was_measured and found.drop <= self._analysis.bar.max_drop:
            self.found[-1] = dataclasses.replace(found, holds=True)

    def float_model(self) -> DtypeMap:
        """Return the map in which all layers stay float32."""
        seconds = total_seconds([0] * len(self._choices), self._choices, self._changes)
        return DtypeMap((), (), seconds, 0.0, 1.0, None, 0.0, 0, True)

    def _tell(self, found: DtypeMap) -> None:
        if self._analysis.progress is not None:
            count = len(self._analysis.layers)
            halves = len(half_layers(found.by_layer))
            text = (
                f"{len(found.layers) - halves} layers in int8, {halves} in 16 bits, cosine "
                f"{found.cosine:.4f}"
            )
            self._analysis.progress(count, count, text)


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

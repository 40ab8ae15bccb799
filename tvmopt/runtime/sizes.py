"""Sizes that one compiled model holds, and which of them a call takes.

A call of another size is divided along the rows of its batch, and padded with zeros along
dimensions whose padding the model does not see. Among the ways to do that, the one with the least
measured time is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tvmopt.errors import ConfigError

#: Handling of a dimension: rows are independent; padding does not matter; every size is its own.
ROWS, PADDED, EXACT = "rows", "padded", "exact"
HANDLINGS = (ROWS, PADDED, EXACT)

Shapes = tuple[tuple[int, ...], ...]
Axis = tuple[int, int]
Run = Callable[[int, Sequence[np.ndarray]], list[np.ndarray]]

# Rows up to which the division with the least time is searched; beyond, one size repeats.
_MOST_SEARCHED_ROWS = 512
# The size of exactly the shapes of a call is taken unless others take clearly less time.
_CLEARLY = 1.1
# Time of a call besides its elements, in elements, where nothing was measured.
_CALL_ELEMENTS = 1000.0
# Shapes whose plans are kept, and sizes that a message names.
_MOST_PLANS, _MOST_NAMED = 1000, 6


@dataclasses.dataclass(frozen=True)
class SizeDimension:
    """A dimension that differs between the sizes.

    Attributes:
        name: Its name.
        inputs: Its axes: position of the input, and axis.
        outputs: Its axes in the outputs: position of the output, and axis.
        handling: ``"rows"``, ``"padded"`` or ``"exact"``.
        reason: Why it is not padded; empty if it is, or has independent rows.
    """

    name: str
    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    handling: str = EXACT
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class CompiledSize:
    """Shapes that a function of the library takes.

    Attributes:
        inputs: Shape of each input.
        outputs: Shape of each output.
        milliseconds: Time of a call on the machine that built it; 0 if unknown.
    """

    inputs: Shapes
    outputs: Shapes
    milliseconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class SizedCall:
    """One call of a plan: rows ``start`` to ``stop`` by the function of a size."""

    size: int
    start: int
    stop: int


class SizePlanner:
    """Chooses the calls of any size.

    Args:
        names: Name of each input, for messages.
        sizes: The sizes; the largest is the first.
        dimensions: The dimensions that differ.
        any_rows: Whether the first axis of all inputs and outputs counts independent rows.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[CompiledSize],
        dimensions: Sequence[SizeDimension],
        any_rows: bool,
    ) -> None:
        self._names, self.sizes, self._any_rows = tuple(names), tuple(sizes), any_rows
        self._dimensions = tuple(one for one in dimensions if one.handling != ROWS)
        self._padded = {axis for one in dimensions if one.handling == PADDED for axis in one.inputs}
        self._costs = _costs(self.sizes)
        self._exact = {size.inputs: number for number, size in reversed([*enumerate(sizes)])}
        self._plans: dict[Shapes, tuple[SizedCall, ...]] = {}

    def plan(self, shapes: Shapes) -> tuple[SizedCall, ...]:
        """Return the calls that compute inputs of ``shapes``.

        Raises:
            ConfigError: When no size fits.
        """
        if shapes not in self._plans:
            if len(self._plans) > _MOST_PLANS:
                self._plans.clear()
            self._plans[shapes] = self._planned(shapes)
        return self._plans[shapes]

    def exact(self, shapes: Shapes) -> int | None:
        """Return the size that computes inputs of ``shapes`` as they are; None if none does.

        Raises:
            ConfigError: When no size fits.
        """
        calls = self.plan(shapes)
        if len(calls) == 1 and self.sizes[calls[0].size].inputs == shapes:
            return calls[0].size
        return None

    def run(self, run: Run, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of inputs of any size.

        Args:
            run: Runs the function of a size on inputs of its shapes.
            arrays: The inputs.

        Raises:
            ConfigError: When no size fits.
        """
        shapes = tuple(array.shape for array in arrays)
        exact = self.exact(shapes)
        if exact is not None:
            return run(exact, arrays)
        calls, parts = self.plan(shapes), []
        for call in calls:
            size = self.sizes[call.size]
            given = [
                self._filled(array, shape, call)
                for array, shape in zip(arrays, size.inputs, strict=True)
            ]
            values = run(call.size, given)
            parts.append(
                [
                    value[self._kept(shapes, number, value.ndim, call)]
                    for number, value in enumerate(values)
                ]
            )
        if len(parts) == 1:
            return [np.ascontiguousarray(value) for value in parts[0]]
        return [np.concatenate(values) for values in zip(*parts, strict=True)]

    def _filled(self, array: np.ndarray, shape: tuple[int, ...], call: SizedCall) -> np.ndarray:
        """Return the rows of a call; missing rows repeat the last one, other axes get zeros."""
        if self._any_rows:
            own, rows = array[call.start : call.stop], call.stop - call.start
            array = own
            if rows < shape[0]:
                array = np.empty((shape[0], *own.shape[1:]), own.dtype)
                array[:rows], array[rows:] = own, own[-1]
        return array if array.shape == shape else zero_padded(array, shape)

    def _kept(self, shapes: Shapes, output: int, rank: int, call: SizedCall) -> tuple[slice, ...]:
        """Return the part of an output that is not padding."""
        kept = [slice(None)] * rank
        if self._any_rows:
            kept[0] = slice(call.stop - call.start)
        for dimension in self._dimensions:
            position, axis = dimension.inputs[0]
            for number, own in dimension.outputs:
                if number == output:
                    kept[own] = slice(shapes[position][axis])
        return tuple(kept)

    def _planned(self, shapes: Shapes) -> tuple[SizedCall, ...]:
        exact = self._exact.get(shapes)
        if exact is not None and len({shape[:1] for shape in shapes}) != 1:
            return (SizedCall(exact, 0, 1),)
        self._require_agreement(shapes)
        fitting = [
            number for number, size in enumerate(self.sizes) if self._fits(shapes, size.inputs)
        ]
        if not fitting:
            raise ConfigError(self._refusal(shapes))
        if not self._any_rows:
            number = min(fitting, key=self._costs.__getitem__) if exact is None else exact
            return (SizedCall(number, 0, 1),)
        divided = tuple(self._divided(shapes[0][0], fitting))
        cost = sum(self._costs[call.size] for call in divided)
        if exact is not None and self._costs[exact] <= _CLEARLY * cost:
            return (SizedCall(exact, 0, shapes[0][0]),)
        return divided

    def _divided(self, rows: int, fitting: Sequence[int]) -> Iterator[SizedCall]:
        """Yield calls of all rows, with the least time."""
        of = {number: self.sizes[number].inputs[0][0] for number in fitting}
        start = 0
        steady = min(fitting, key=lambda number: self._costs[number] / of[number])
        while rows - start > _MOST_SEARCHED_ROWS:
            yield SizedCall(steady, start, min(rows, start + of[steady]))
            start += of[steady]
        least: list[tuple[float, int]] = [(0.0, -1)]
        for count in range(1, rows - start + 1):
            least.append(
                min(
                    (self._costs[number] + least[max(0, count - of[number])][0], number)
                    for number in fitting
                )
            )
        chosen = []
        left = rows - start
        while left > 0:
            chosen.append(least[left][1])
            left -= of[chosen[-1]]
        for number in sorted(chosen, key=lambda number: -of[number]):
            stop = min(rows, start + of[number])
            yield SizedCall(number, start, stop)
            start = stop

    def _fits(self, shapes: Shapes, size: Shapes) -> bool:
        if self._any_rows and len({shape[:1] for shape in size}) != 1:
            return False
        for position, (own, other) in enumerate(zip(shapes, size, strict=True)):
            if len(own) != len(other):
                return False
            for axis, (extent, held) in enumerate(zip(own, other, strict=True)):
                if axis == 0 and self._any_rows:
                    continue
                if extent != held and not (extent < held and (position, axis) in self._padded):
                    return False
        return True

    def _require_agreement(self, shapes: Shapes) -> None:
        """Refuse inputs that differ along one dimension."""
        groups = [(one.name, one.inputs) for one in self._dimensions]
        if self._any_rows:
            groups.append(("rows", tuple((position, 0) for position in range(len(shapes)))))
        for name, axes in groups:
            found = {
                shapes[position][axis] for position, axis in axes if axis < len(shapes[position])
            }
            if len(found) > 1 or 0 in found:
                raise ConfigError(
                    f"inputs must have the same size of at least 1 along {name!r}, but got "
                    f"{', '.join(map(str, sorted(found)))}"
                )

    def _refusal(self, shapes: Shapes) -> str:
        got = self._in_words(shapes)
        held = "; ".join(self._in_words(size.inputs) for size in self.sizes[:_MOST_NAMED])
        more = len(self.sizes) - _MOST_NAMED
        held += f"; and {more} more" if more > 0 else ""
        reasons = [f"{one.name!r} {one.reason}" for one in self._dimensions if one.reason]
        why = f"; {'; '.join(reasons)}" if reasons else ""
        return (
            f"inputs must fit a size that the model was compiled for ({held}), but got {got}{why}; "
            "compile it for this size, too"
        )

    def _in_words(self, shapes: Shapes) -> str:
        return ", ".join(
            f"{name}:{'x'.join(map(str, shape))}"
            for name, shape in zip(self._names, shapes, strict=True)
        )


def _costs(sizes: Sequence[CompiledSize]) -> list[float]:
    """Return the measured milliseconds of each size; estimates if one was not measured."""
    if all(size.milliseconds for size in sizes):
        return [size.milliseconds for size in sizes]
    return [_CALL_ELEMENTS + sum(map(math.prod, size.inputs)) for size in sizes]


def zero_padded(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a larger array of ``shape`` that begins with ``array``; the rest is 0."""
    padded = np.zeros(shape, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def of_size(name: str, size: int) -> str:
    """Return the name of the function ``name`` in the library for a size; 0 is the largest."""
    return f"{name}_{size}" if size else name

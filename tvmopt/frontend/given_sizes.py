"""Sizes that one compiled artifact serves: every combination of the sets in ``input_shapes``."""

from __future__ import annotations

import dataclasses
import itertools
import math

from tvmopt.frontend.given_sets import GivenSets, parse_given_sets
from tvmopt.frontend.given_shapes import GivenShapes, format_given_shapes


@dataclasses.dataclass(frozen=True)
class GivenSize:
    """One size.

    Attributes:
        values: The value of each dimension that varies, in the order of ``GivenSizes.dimensions``.
        text: The text of ``input_shapes`` for this size, without sets.
    """

    values: tuple[int, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class GivenSizes:
    """All sizes that a text gives.

    Attributes:
        dimensions: What varies: ``"image[0]"`` for an axis of an input, then ``"batch"`` for a
            dimension that the model names. Empty for a text without sets.
        sizes: At least one. The largest product of values is first; of equal products, the one
            with the larger first values.
    """

    dimensions: tuple[str, ...]
    sizes: tuple[GivenSize, ...]


def parse_given_sizes(text: str) -> GivenSizes:
    """Parse ``"ids:1x{16:128:16},mask:=ids"`` or ``"batch=1,4,16;sequence=16"``.

    The sizes are the Cartesian product of all sets. A set with one value adds no dimension.

    Raises:
        ConfigError: When the text does not match the grammar (:func:`parse_given_sets`), or gives
            more than 128 sizes.
    """
    given = parse_given_sets(text)
    extents = given.extents
    varying = [index for index, values in enumerate(extents) if len(values) > 1]
    names = _names(given)
    sizes = [
        GivenSize(tuple(size[index] for index in varying), _text(given, size))
        for size in itertools.product(*extents)
    ]
    sizes.sort(key=lambda size: (math.prod(size.values), size.values), reverse=True)
    return GivenSizes(tuple(names[index] for index in varying), tuple(sizes))


def _names(given: GivenSets) -> list[str]:
    axes = [f"{name}[{axis}]" for name, shape in given.shapes.items() for axis in range(len(shape))]
    return [*axes, *given.sizes]


def _text(given: GivenSets, size: tuple[int, ...]) -> str:
    """Format one value of each extent, in the order of ``GivenSets.extents``."""
    values = iter(size)
    shapes = {
        name: tuple(itertools.islice(values, len(axes))) for name, axes in given.shapes.items()
    }
    sizes = dict(zip(given.sizes, values, strict=True))
    return format_given_shapes(GivenShapes(shapes, sizes, given.copies))

"""Shapes of inputs as the user gives them, as text: of inputs, or of dimensions by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx

from tvmopt.errors import ConfigError
from tvmopt.frontend.given_sets import GivenSets, escaped, parse_given_sets
from tvmopt.frontend.shapes import UNNAMED, Shapes, declared_dims, graph_inputs


@dataclasses.dataclass(frozen=True)
class GivenShapes:
    """What the user says about shapes.

    Attributes:
        shapes: Shape of each input that has one.
        sizes: Size of each dimension that the model names.
        copies: Inputs that have the shape of another input, and that one.
    """

    shapes: Shapes
    sizes: dict[str, int]
    copies: dict[str, str]


def parse_given_shapes(text: str) -> GivenShapes:
    """Parse ``"image:1x3x224x224,mask:1x16"``, ``"batch=1,sequence=16"`` or ``"mask:=image"``.

    A scalar is written ``"rate:"``. :func:`parse_given_sets` documents the grammar; here, a set
    must have one value.

    Raises:
        ConfigError: When an entry is not ``name:AxBxC`` with positive integers, ``dimension=A``, or
            ``name:=other``; or when a set has several values.
    """
    given = parse_given_sets(text)
    if any(len(values) > 1 for values in given.extents):
        raise ConfigError(
            f"input_shapes must give one size here, but got sets: {text[:100]!r}; give one value "
            "instead of each set"
        )
    return _largest(given)


def _largest(given: GivenSets) -> GivenShapes:
    """Return the size with the largest value of every set, which is the first of all sizes."""
    return GivenShapes(
        {name: tuple(map(max, axes)) for name, axes in given.shapes.items()},
        {name: max(values) for name, values in given.sizes.items()},
        given.copies,
    )


def parse_input_shapes(text: str) -> Shapes:
    """Parse shapes of inputs, as :func:`parse_given_shapes`, without names of dimensions.

    Raises:
        ConfigError: When the text is wrong, or names a dimension.
    """
    given = parse_given_shapes(text)
    if given.sizes or given.copies:
        raise ConfigError(f"input_shapes must be name:AxBxC here, but got {text!r}")
    return given.shapes


def shapes_for(model: onnx.ModelProto, text: str) -> Shapes:
    """Return the shapes of inputs of ``model`` that a text gives; static inputs may be left out.

    A text with sets gives the shapes of its largest size.

    Raises:
        ConfigError: When the text is wrong, or names what the model lacks.
    """
    given = _largest(parse_given_sets(text))
    declared = {value.name: declared_dims(value) for value in graph_inputs(model)}
    named = {name for dims in declared.values() for name in _names_in(dims)}
    _require_known("dimensions", given.sizes, named)
    _require_known("inputs", [*given.copies, *given.copies.values()], declared)
    shapes = dict(given.shapes)
    for name, dims in declared.items():
        if dims is None:
            continue
        sizes = [given.sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        if name in shapes:
            _require_agreement(name, dims, shapes[name], given.sizes)
        elif name not in given.copies and all(isinstance(size, int) for size in sizes):
            shapes[name] = tuple(map(int, sizes))
    for name, other in given.copies.items():
        if other not in shapes:
            raise ConfigError(
                f"input_shapes must give {other!r} a shape, since {name!r} has the same; but it "
                "gives none"
            )
        shapes[name] = shapes[other]
    return shapes


def _names_in(dims: list[int | str] | None) -> list[str]:
    return [dim for dim in dims or [] if isinstance(dim, str) and dim != UNNAMED]


def _require_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(
            f"input_shapes must name {kind} of the model ({', '.join(sorted(known)) or 'none'}), "
            f"but got {', '.join(map(repr, unknown))}"
        )


def _require_agreement(
    name: str, dims: list[int | str], shape: tuple[int, ...], sizes: dict[str, int]
) -> None:
    for dim, size in zip(dims, shape, strict=False):
        if isinstance(dim, str) and sizes.get(dim, size) != size:
            raise ConfigError(
                f"input_shapes must agree, but {name!r} has {size} where the model has {dim}, "
                f"and {dim}={sizes[dim]}"
            )


def format_given_shapes(given: GivenShapes) -> str:
    """Format shapes: the inverse of :func:`parse_given_shapes`."""
    shapes = [f"{escaped(name)}:{'x'.join(map(str, dims))}" for name, dims in given.shapes.items()]
    sizes = [f"{escaped(name)}={size}" for name, size in given.sizes.items()]
    copies = [f"{escaped(name)}:={escaped(other)}" for name, other in given.copies.items()]
    return ",".join([*shapes, *sizes, *copies])


def format_input_shapes(shapes: Shapes) -> str:
    """Format shapes of inputs: the inverse of :func:`parse_input_shapes`."""
    return format_given_shapes(GivenShapes(shapes, {}, {}))

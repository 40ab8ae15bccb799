"""Shapes of inputs as the user gives them, as text: of inputs, or of dimensions by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TypeVar

import onnx

from tvmopt.errors import ConfigError
from tvmopt.frontend.shapes import EXAMPLE, UNNAMED, Shapes, declared_dims, graph_inputs

# Parts between commas without a backslash before them.
_ENTRY = re.compile(r"(?:\\.|[^,\\])+")
# An input with the shape of another: the colon has no backslash before it.
_COPY = re.compile(r"((?:\\.|[^\\])+?):=(.+)")
_MOST_DIGITS = 9
_Value = TypeVar("_Value")


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

    A scalar is written ``"rate:"``. In a name, a backslash escapes a comma, a final colon, a
    leading or trailing blank, and a backslash.

    Raises:
        ConfigError: When an entry is not ``name:AxBxC`` with positive integers, ``dimension=A``, or
            ``name:=other``.
    """
    given = GivenShapes({}, {}, {})
    for entry in filter(None, (part.strip() for part in _ENTRY.findall(text))):
        name, colon, dims = entry.rpartition(":")
        dimension, _, size = entry.rpartition("=")
        if copy := _COPY.fullmatch(entry):
            _add(given.copies, "input", copy[1], _unescaped(copy[2]))
        elif colon and name and re.fullmatch(r"([0-9]+(x[0-9]+)*)?", dims):
            sizes = [_size(entry, digits) for digits in dims.split("x")] if dims else []
            _add(given.shapes, "input", name, tuple(sizes))
        elif dimension and re.fullmatch(r"[0-9]+", size):
            _add(given.sizes, "dimension", dimension, _size(entry, size))
        else:
            raise ConfigError(
                "input_shapes must be name:AxBxC, dimension=A or name:=other, with commas between, "
                f"{EXAMPLE}; but got {entry!r}"
            )
    for name in given.shapes.keys() & given.copies.keys():
        raise ConfigError(f"input_shapes must name each input once, but got {name!r} twice")
    return given


def _add(known: dict[str, _Value], kind: str, escaped: str, value: _Value) -> None:
    name = _unescaped(escaped)
    if name in known:
        raise ConfigError(f"input_shapes must name each {kind} once, but got {name!r} twice")
    known[name] = value


def _size(entry: str, digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ConfigError(
            f"input_shapes must hold dimensions of at most {_MOST_DIGITS} digits, but "
            f"got {entry[:100]!r}"
        )
    return int(digits)


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

    Raises:
        ConfigError: When the text is wrong, or names what the model lacks.
    """
    given = parse_given_shapes(text)
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
    shapes = [f"{_escaped(name)}:{'x'.join(map(str, dims))}" for name, dims in given.shapes.items()]
    sizes = [f"{_escaped(name)}={size}" for name, size in given.sizes.items()]
    copies = [f"{_escaped(name)}:={_escaped(other)}" for name, other in given.copies.items()]
    return ",".join([*shapes, *sizes, *copies])


def format_input_shapes(shapes: Shapes) -> str:
    """Format shapes of inputs: the inverse of :func:`parse_input_shapes`."""
    return format_given_shapes(GivenShapes(shapes, {}, {}))


def _unescaped(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _escaped(name: str) -> str:
    return re.sub(r"[\\,:]|^\s|\s$", r"\\\g<0>", name)

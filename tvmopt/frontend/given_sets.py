"""Grammar of the text of ``input_shapes``: split it into entries, parse sets, escape names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Set
from typing import TypeVar

from tvmopt.errors import ConfigError
from tvmopt.frontend.shapes import EXAMPLE

#: Values of one extent, ascending, each once; one value where the extent does not vary.
Values = tuple[int, ...]

# Compile time and the size of the artifact grow with the number of sizes; and a typing error, as in
# ``1:100000:1``, must fail before anything is compiled.
MOST_SIZES = 128
_MOST_DIGITS = 9

_CHARACTER = r"(?:\\.|[^\\{}])"
_NAME = rf"({_CHARACTER}+)"
_SET = r"\{[^{}\\]*\}"
# An entry, or a part of a plain set: up to a comma or semicolon outside braces and not escaped.
_PART = re.compile(rf"(?:\\.|{_SET}|[^,;\\])+", re.DOTALL)
_ITEM = re.compile(r"([0-9]+)(?::([0-9]+):([0-9]+))?")
_COPY = re.compile(rf"({_CHARACTER}+?):={_NAME}", re.DOTALL)
_DIMENSION = re.compile(rf"{_NAME}=([0-9]+(?:[:,][0-9]+)*|{_SET})", re.DOTALL)
_EXTENT = re.compile(rf"[0-9]+|{_SET}")
_SHAPE = re.compile(rf"{_NAME}:((?:(?:{_EXTENT.pattern})(?:x(?:{_EXTENT.pattern}))*)?)", re.DOTALL)
_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True)
class GivenSets:
    """What the user says about shapes, with all values of each extent.

    Attributes:
        shapes: Values of each axis of each input that has a shape.
        sizes: Values of each dimension that the model names.
        copies: Inputs that have the shape of another input, and that one.
    """

    shapes: dict[str, tuple[Values, ...]]
    sizes: dict[str, Values]
    copies: dict[str, str]

    @property
    def extents(self) -> list[Values]:
        """Values of every axis in ``shapes``, then of every dimension in ``sizes``."""
        return [*(values for axes in self.shapes.values() for values in axes), *self.sizes.values()]


def parse_given_sets(text: str) -> GivenSets:
    r"""Parse ``"ids:1x{16:128:16},mask:=ids"`` or ``"batch=1,4,16;sequence=16"``.

    A set is a list of integers and ranges ``first:last:step`` in braces. After ``dimension=``, the
    braces may be omitted. Commas or semicolons separate entries. In a name, a backslash escapes
    ``, ; : = { } \`` and a leading or trailing blank.

    Raises:
        ConfigError: When the text does not match the grammar, names something twice, or gives more
            than 128 sizes.
    """
    given = GivenSets({}, {}, {})
    for entry in entries(text):
        if copy := _COPY.fullmatch(entry):
            _add(given.copies, "input", copy[1], unescaped(copy[2]))
        elif dimension := _DIMENSION.fullmatch(entry):
            _add(given.sizes, "dimension", dimension[1], _values(entry, dimension[2]))
        elif shape := _SHAPE.fullmatch(entry):
            axes = tuple(_values(entry, extent) for extent in _EXTENT.findall(shape[2]))
            _add(given.shapes, "input", shape[1], axes)
        else:
            raise ConfigError(
                "input_shapes must be name:AxBxC, dimension=A or name:=other, with commas between, "
                "where A may be a set such as {1,4,16} or {16:128:16} (first:last:step), "
                f"{EXAMPLE}; but got {entry!r}"
            )
    for name in given.shapes.keys() & given.copies.keys():
        raise ConfigError(f"input_shapes must name each input once, but got {name!r} twice")
    counts = [len(values) for values in given.extents if len(values) > 1]
    if math.prod(counts) > MOST_SIZES:
        raise _too_many("x".join(map(str, counts))[:100])
    return given


def entries(text: str) -> list[str]:
    """Split a text; ``batch=1,4,16`` is one entry, since integers and ranges continue a set."""
    found: list[list[str]] = []
    for part in filter(None, map(_stripped, _PART.findall(text))):
        if found and _ITEM.fullmatch(part) and _has_plain_set(found[-1][0]):
            found[-1].append(part)
        else:
            found.append([part])
    return [",".join(parts) for parts in found]


def _has_plain_set(entry: str) -> bool:
    if entry.endswith("}") or _COPY.fullmatch(entry):
        return False
    return _DIMENSION.fullmatch(entry) is not None


def _stripped(part: str) -> str:
    """Remove blanks on both sides, but not an escaped one at the end."""
    left = part.lstrip()
    found = left.rstrip()
    escapes = (len(found) - len(found.rstrip("\\"))) % 2
    return left[: len(found) + escapes]


def _add(known: dict[str, _Value], kind: str, escaped_name: str, value: _Value) -> None:
    name = unescaped(escaped_name)
    if name in known:
        raise ConfigError(f"input_shapes must name each {kind} once, but got {name!r} twice")
    known[name] = value


def _values(entry: str, extent: str) -> Values:
    """Parse an integer, or a set with or without braces."""
    if extent.isdecimal():
        return (_size(entry, extent),)
    found: set[int] = set()
    for item in extent.strip("{}").split(","):
        values = _range(entry, item.strip())
        if len(values) <= MOST_SIZES:
            found.update(values)
        if max(len(values), len(found)) > MOST_SIZES:
            raise _too_many(f"a larger set in {entry[:100]!r}")
    return tuple(sorted(found))


def _range(entry: str, item: str) -> range:
    if found := _ITEM.fullmatch(item):
        first, last, step = (_size(entry, digits or "0") for digits in found.groups())
        if found[2] is None:
            last, step = first, 1
        if 1 <= first <= last and step:
            return range(first, last + 1, step)
    raise ConfigError(
        "input_shapes must have sets of positive integers and ranges first:last:step with "
        "first <= last, for example {1,4,16} or {16:128:16}, but got "
        f"{item[:100]!r} in {entry[:100]!r}"
    )


def _size(entry: str, digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ConfigError(
            f"input_shapes must hold dimensions of at most {_MOST_DIGITS} digits, but "
            f"got {entry[:100]!r}"
        )
    return int(digits)


def _too_many(got: str) -> ConfigError:
    return ConfigError(
        f"input_shapes must give at most {MOST_SIZES} sizes, all sets combined, but got {got}; "
        "give fewer values or larger steps"
    )


def format_extent(extent: object) -> str:
    """Format an integer, or a list, tuple, set or range of integers as a set in braces.

    :func:`parse_given_sets` checks the values.
    """
    if isinstance(extent, range) and extent:
        first, last = sorted((extent[0], extent[-1]))
        return f"{{{first}:{last}:{abs(extent.step)}}}"
    if isinstance(extent, list | tuple | range | Set):
        return f"{{{','.join(_ascending(extent))}}}"
    return str(extent)


def _ascending(values: Iterable[object]) -> list[str]:
    # Also orders what is no integer, so that the parser can refuse it.
    return sorted(map(str, values), key=lambda digits: (len(digits), digits))


def escaped(name: str) -> str:
    """Escape a name for the text of ``input_shapes``."""
    return re.sub(r"[\\,;:={}]|\A\s|\s\Z", r"\\\g<0>", name)


def unescaped(name: str) -> str:
    """Return a name as it was before :func:`escaped`."""
    return re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL)

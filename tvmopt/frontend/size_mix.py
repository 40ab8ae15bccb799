"""Parse ``size_mix``: the share of a user's calls in each compiled size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmopt.errors import ConfigError

# Calls of one round, which is timed as a whole.
_MOST_CALLS = 100


def parse_size_mix(
    text: str, dimensions: Sequence[str], sizes: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Parse ``"9*batch=1,length=16;1*batch=4,length=64"``.

    Args:
        text: Entries ``COUNT*DIMENSION=VALUE,...``, separated by semicolons.
        dimensions: Dimensions that differ between the sizes.
        sizes: The values of each size in the order of ``dimensions``.

    Returns:
        The calls of each size in one round, in the order of ``sizes``; without a common divisor.

    Raises:
        ConfigError: When an entry has another form, no size has its values, or the counts are not
            within 1 and 100 in total.
    """
    if not dimensions:
        raise _refusal(text, "input_shapes has one size only")
    counts = [0] * len(sizes)
    for entry in text.split(";"):
        size = _size_of(entry, text, dimensions, sizes)
        count = entry.partition("*")[0].strip()
        if not (count.isascii() and count.isdigit()) or int(count) < 1 or counts[size]:
            raise _refusal(text, f"{entry.strip()!r} has no count, or a size has two")
        counts[size] = int(count)
    divisor = math.gcd(*counts)
    if sum(counts) // divisor > _MOST_CALLS:
        raise ConfigError(
            f"the counts of size_mix must add up to at most {_MOST_CALLS}, but {text!r} has "
            f"{sum(counts) // divisor}; give rounder ones"
        )
    return tuple(count // divisor for count in counts)


def _size_of(
    entry: str, text: str, dimensions: Sequence[str], sizes: Sequence[tuple[int, ...]]
) -> int:
    pairs = [pair.rpartition("=") for pair in entry.partition("*")[2].split(",")]
    given = {name.strip(): value.strip() for name, _, value in pairs}
    if sorted(given) != sorted(dimensions) or len(pairs) != len(dimensions):
        names = ", ".join(dimensions)
        raise _refusal(text, f"{entry.strip()!r} must name each dimension ({names}) once")
    wanted = [given[name] for name in dimensions]
    for number, values in enumerate(sizes):
        if [str(value) for value in values] == wanted:
            return number
    raise _refusal(text, f"no size of input_shapes is {', '.join(wanted)}")


def _refusal(text: str, why: str) -> ConfigError:
    return ConfigError(
        "size_mix must give calls by size, as in 9*batch=1,length=16;1*batch=4,length=64, but got "
        f"{text!r}: {why}"
    )

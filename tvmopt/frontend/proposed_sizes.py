"""Propose sizes of a dimension from samples: ``sequence=auto`` -> ``sequence={16,40,128}``.

The samples of a file have one shape, so shorter ones are padded in it. How long each is, a mask of
zeros and ones says; without one, the zeros at its end do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx

from tvmopt.errors import ConfigError
from tvmopt.frontend.given_sets import entries, escaped, format_extent, unescaped
from tvmopt.frontend.shapes import declared_dims, graph_inputs

#: Word for a size that is proposed.
AUTO = "auto"
_PROPOSED = re.compile(rf"(.+)=\s*{AUTO}\s*", re.DOTALL)
# More sizes cost more to build than they save: samples are padded by 5 % of their length at most.
_MOST_SIZES, _MOST_PADDING = 8, 0.05
# Lengths are rounded up to a 64th of the longest, which vectors divide, so that few are compared.
_STEPS, _VECTOR = 64, 8

_Arrays = Mapping[str, np.ndarray]


def proposes(text: str) -> bool:
    """Return whether a text of ``input_shapes`` has an entry ``dimension=auto``."""
    return any(_PROPOSED.fullmatch(entry) for entry in entries(text))


def with_proposed_sizes(text: str, model: onnx.ModelProto, arrays: _Arrays | None) -> str:
    """Return a text with a set for each ``dimension=auto``.

    Args:
        text: The text of ``input_shapes``.
        model: Names the dimensions of its inputs.
        arrays: Samples by input name; the first axis counts them. None without data.

    Raises:
        ConfigError: When there is no data, or it does not tell the sizes.
    """
    found = []
    for entry in entries(text):
        asked = _PROPOSED.fullmatch(entry)
        if asked is None:
            found.append(entry)
            continue
        name = unescaped(asked[1])
        if arrays is None:
            raise _refusal(name, "there is no data; give data, or sizes such as 16,64,128")
        sizes = propose_sizes(*_lengths(name, model, arrays))
        found.append(f"{escaped(name)}={format_extent(sizes)}")
    return ",".join(found)


def propose_sizes(lengths: np.ndarray, longest: int) -> tuple[int, ...]:
    """Return the fewest sizes that pad the samples by 5 % in all, and at most eight.

    Args:
        lengths: Length of each sample, from 1 to ``longest``.
        longest: The largest size; always one of the sizes.
    """
    step = 1 if longest <= _STEPS else -(-longest // _STEPS // _VECTOR) * _VECTOR
    rounded = np.minimum(-(-lengths // step) * step, longest)
    values, counts = np.unique(np.append(rounded, longest), return_counts=True)
    counts[-1] -= 1  # the longest is a size even if no sample has it
    before = np.concatenate([[0], np.cumsum(counts)])
    # cost[i]: length of the first i values' samples, padded, in the sizes so far.
    cost = np.where(np.arange(len(values) + 1) == 0, 0.0, np.inf)
    splits: list[np.ndarray] = []
    for _ in range(min(_MOST_SIZES, len(values))):
        with_size = cost[:-1, None] + values * (before[1:] - before[:-1, None])
        with_size[np.tril_indices(len(values), -1)] = np.inf
        splits.append(with_size.argmin(axis=0))
        cost = np.concatenate([[0.0], with_size.min(axis=0)])
        if cost[-1] <= (1 + _MOST_PADDING) * float(values @ counts):
            break
    sizes, end = [], len(values)
    for split in reversed(splits):
        sizes.append(int(values[end - 1]))
        end = int(split[end - 1])
        if not end:
            break
    return tuple(reversed(sizes))


def _lengths(name: str, model: onnx.ModelProto, arrays: _Arrays) -> tuple[np.ndarray, int]:
    """Return the length of each sample along a dimension, and the extent of the arrays."""
    used: list[tuple[np.ndarray, bool]] = []
    for value in graph_inputs(model):
        dims = declared_dims(value) or []
        array = arrays.get(value.name)
        for axis in (axis for axis, dim in enumerate(dims) if dim == name):
            if array is None:
                raise _refusal(name, f"data holds no array {value.name!r}, whose axis it is")
            extra = array.ndim - len(dims)  # whole inputs have an axis more
            if extra not in (0, 1):
                got = f"{value.name!r} has {array.ndim} axes in data; want {len(dims)}"
                raise _refusal(name, got)
            at = axis + extra
            if at == 0:
                raise _refusal(
                    name,
                    "data tells how many samples there are, not how many a call has; give sizes "
                    "such as 1,4,16",
                )
            others = tuple(i for i in range(1, array.ndim) if i != at)
            is_mask = bool(np.isin(array, (0, 1)).all()) and not array.all()
            used.append(((array != 0).any(axis=others), is_mask))
    if not used:
        raise _refusal(name, "no input of the model has a dimension of that name")
    shapes = {one.shape for one, _ in used}
    if len(shapes) > 1:
        got = ", ".join(map(str, sorted(shapes)))
        raise _refusal(name, f"the arrays of data differ along it: (samples, extent) = {got}")
    masks = [one for one, is_mask in used if is_mask] or [one for one, _ in used]
    # A mask may begin with zeros: what counts is its last one.
    any_used = np.logical_or.reduce(masks)
    extent = any_used.shape[1]
    lengths = extent - np.argmax(any_used[:, ::-1], axis=1)
    return np.where(any_used.any(axis=1), lengths, 1), extent


def _refusal(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"input_shapes must propose {name!r} from data for {name}={AUTO}, but {reason}"
        "; give the sizes themselves"
    )

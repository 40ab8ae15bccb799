"""Find the dimensions that differ between the converted sizes of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvmopt.frontend.given_sizes import GivenSizes
from tvmopt.frontend.padding import why_padding_is_seen
from tvmopt.frontend.reference import Reference
from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.bundle import golden_name
from tvmopt.runtime.metadata import GOLDEN_FILE
from tvmopt.runtime.sizes import PADDED, ROWS, Axis, SizeDimension
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.signature import Signature

_SEED = 7


def find_dimensions(given: GivenSizes, folders: Sequence[Path]) -> list[SizeDimension]:
    """Return the dimensions that differ between converted sizes, and how a call may differ.

    Args:
        given: What the user asked for.
        folders: Folder of each size.
    """
    signatures = [Signature.read(folder) for folder in folders]
    return [
        _dimension(given, number, name, signatures, folders)
        for number, name in enumerate(given.dimensions)
    ]


def _dimension(
    given: GivenSizes,
    number: int,
    name: str,
    signatures: Sequence[Signature],
    folders: Sequence[Path],
) -> SizeDimension:
    values = [size.values[number] for size in given.sizes]
    inputs = _axes([[spec.shape for spec in one.inputs] for one in signatures], values)
    outputs = _axes([[spec.shape for spec in one.outputs] for one in signatures], values)
    largest = signatures[0]
    if largest.any_rows and inputs == tuple((i, 0) for i in range(len(largest.inputs))):
        return SizeDimension(name, inputs, outputs, ROWS)
    small = _smallest(given, number)
    reason = _why_exact(folders[small], signatures[small], folders[0], largest, outputs)
    return SizeDimension(name, inputs, outputs, *(("exact", reason) if reason else (PADDED,)))


def _axes(shapes: Sequence[Sequence[tuple[int, ...]]], values: Sequence[int]) -> tuple[Axis, ...]:
    """Return the axes whose extent is the dimension's value in all sizes."""
    return tuple(
        (position, axis)
        for position, shape in enumerate(shapes[0])
        for axis in range(len(shape))
        if [own[position][axis] for own in shapes] == list(values)
    )


def _smallest(given: GivenSizes, number: int) -> int:
    """Return the size with the least value of one dimension, and the largest of the others."""

    def others(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:number] + values[number + 1 :]

    wanted = others(given.sizes[0].values)
    candidates = [i for i, size in enumerate(given.sizes) if others(size.values) == wanted]
    return min(candidates, key=lambda i: given.sizes[i].values[number])


def _why_exact(
    small: Path,
    small_signature: Signature,
    large: Path,
    large_signature: Signature,
    output_axes: Sequence[Axis],
) -> str:
    specs = small_signature.inputs
    with np.load(small / GOLDEN_FILE, allow_pickle=False) as data:
        golden = {spec.name: data[golden_name("input", i, 0)] for i, spec in enumerate(specs)}
    random = random_arrays(specs, _SEED, small_signature.random_inputs)
    references = (
        Reference(str(small / REFERENCE_FILE)),
        Reference(str(large / REFERENCE_FILE)),
    )

    def reason(*batches: Mapping[str, np.ndarray]) -> str:
        return why_padding_is_seen(*references, large_signature.inputs, batches, output_axes)

    found = reason(golden, random)
    # A random mask may hide all of a sequence, whose outputs then depend on what it hides.
    return found and reason(_unmasked(golden), _unmasked(random))


def _unmasked(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a batch with ones for its masks: for all inputs of integers or bools."""
    return {
        name: np.ones_like(array) if array.dtype.kind in "iub" else array
        for name, array in batch.items()
    }

"""Time of a call in each size of a library; the plan of calls of other sizes uses it."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

from tvmopt.runtime import CompiledModel, ModelMetadata
from tvmopt.runtime.model import read_golden
from tvmopt.spreadsheet import write_csv

SIZES_TABLE = "sizes.csv"
_LEAST_CALLS, _MOST_CALLS, _MOST_S = 5, 200, 0.2


def with_times(metadata: ModelMetadata, model: CompiledModel, bundle: Path) -> ModelMetadata:
    """Return the metadata with the least time of a call of each size on this machine.

    Args:
        metadata: Metadata of a library with several sizes.
        model: The library, loaded.
        bundle: Folder with its golden inputs.
    """
    sizes = []
    for number, size in enumerate(metadata.sizes):
        arrays = list(read_golden(bundle, metadata, number)[0].values())
        least, calls, end = math.inf, 0, time.perf_counter() + _MOST_S
        while calls < _LEAST_CALLS or (calls < _MOST_CALLS and time.perf_counter() < end):
            start = time.perf_counter()
            model.run_size(number, arrays)
            least = min(least, time.perf_counter() - start)
            calls += 1
        sizes.append(dataclasses.replace(size, milliseconds=round(1e3 * least, 6)))
    return dataclasses.replace(metadata, sizes=tuple(sizes))


def write_sizes(path: Path, metadata: ModelMetadata) -> None:
    """Write a row for each size: shapes of the inputs, and milliseconds of a call."""
    names = [spec.name for spec in metadata.inputs]
    with path.open("w", newline="") as file:
        rows = (
            (number, *("x".join(map(str, shape)) for shape in size.inputs), size.milliseconds)
            for number, size in enumerate(metadata.sizes)
        )
        write_csv(file, ["size", *names, "milliseconds"], rows)

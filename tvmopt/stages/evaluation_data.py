"""Data that the evaluate stage measures on, and how many rows a call of it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvmopt.evaluate.dataset import Dataset, choose_dataset
from tvmopt.runtime.metadata import TensorSpec


def evaluation_data(data: Path | None, inputs: Sequence[TensorSpec], random_kind: str) -> Dataset:
    """Return the evaluation part of a data file, or random inputs where ``data`` is None."""
    return choose_dataset(data, inputs, "evaluate", seed=1, random_kind=random_kind)


def rows_a_call(dataset: Dataset) -> int:
    """Return the rows of the first input of a call."""
    if not dataset.stacked:
        return dataset.batch_size
    first = dataset.specs[0].shape
    return first[0] if len(first) > 1 else 1

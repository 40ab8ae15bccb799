"""Data that the evaluate stage measures on, and how many rows a call of it has."""

from __future__ import annotations

from pathlib import Path

from tvmopt.evaluate.dataset import Dataset, choose_dataset
from tvmopt.stages.signature import Signature


def evaluation_data(data: Path | None, signature: Signature) -> Dataset:
    """Return the evaluation part of a data file, or random inputs where ``data`` is None."""
    return choose_dataset(
        data, signature.inputs, "evaluate", seed=1, random_kind=signature.random_inputs
    )


def rows_a_call(dataset: Dataset) -> int:
    """Return the rows of the first input of a call."""
    if not dataset.stacked:
        return dataset.batch_size
    first = dataset.specs[0].shape
    return first[0] if len(first) > 1 else 1

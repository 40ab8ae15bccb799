"""Evaluation data: ``.npz`` or ``.npy`` files, in batches of the compiled shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.evaluate.array_file import read_array_file
from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.categories import encoded
from tvmopt.runtime.metadata import TensorSpec

LABEL_KEYS = ("labels", "label", "y", "targets", "target")
_MIN_TO_SPLIT = 20
_HELDOUT_SHARE = 0.3
_CALIBRATE_SHARE = 0.2
_MOST_TO_CALIBRATE = 512
_SPLIT_SEED = 20261121


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of one call of the model.

    Attributes:
        inputs: Arrays of the compiled shapes, by input name.
        labels: Labels of the first ``valid`` rows; None without labels.
        valid: Number of data rows; the last batch is padded by repeating its last row.
        padding: Number of padding rows.
    """

    inputs: dict[str, np.ndarray]
    labels: np.ndarray | None
    valid: int
    padding: int = 0


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Samples for a model with static shapes.

    Attributes:
        specs: The model's inputs.
        arrays: Samples by input name; the first axis counts samples. With ``stacked``, a sample is
            a whole input of shape ``spec.shape``; otherwise it is one row of the batch axis.
        labels: One a sample, on the first axis: class indices, values, maps, strings; None without
            labels.
        stacked: Whether a sample is a whole input.
        is_random: Whether the samples are random, not the user's.
    """

    specs: tuple[TensorSpec, ...]
    arrays: dict[str, np.ndarray]
    labels: np.ndarray | None
    stacked: bool
    is_random: bool = False

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(next(iter(self.arrays.values())))

    @property
    def batch_size(self) -> int:
        """Samples per call of the model."""
        return 1 if self.stacked else self.specs[0].shape[0]

    def __len__(self) -> int:
        """Number of batches."""
        return math.ceil(self.samples / self.batch_size)

    def batch(self, index: int) -> Batch:
        """Return batch ``index``."""
        if self.stacked:
            # A sample of a scalar input must remain an array.
            inputs = {s.name: np.asarray(self.arrays[s.name][index]) for s in self.specs}
            labels = None if self.labels is None else self._rows_of(np.asarray(self.labels[index]))
            return Batch(inputs, labels, 1 if labels is None else len(labels))
        size = self.batch_size
        rows = np.arange(index * size, min((index + 1) * size, self.samples))
        padded = np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
        inputs = {s.name: self.arrays[s.name][padded] for s in self.specs}
        labels = None if self.labels is None else self.labels[rows]
        return Batch(inputs, labels, len(rows), size - len(rows))

    def _rows_of(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels of a whole input with an axis of its rows."""
        rows = (self.specs[0].shape or (1,))[0]
        has_rows = labels.ndim == 1 if is_class_indices(labels) else labels.shape[:1] == (rows,)
        return labels if has_rows else labels[None]

    def batches(self) -> Iterator[Batch]:
        """Return all batches in order."""
        return (self.batch(i) for i in range(len(self)))

    def take(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """Return the samples at ``indices``."""
        indices = np.asarray(indices, dtype=np.int64)
        return dataclasses.replace(
            self,
            arrays={name: array[indices] for name, array in self.arrays.items()},
            labels=None if self.labels is None else self.labels[indices],
        )

    def split(self, part: str) -> Dataset:
        """Return a fixed, disjoint part of the samples.

        ``"calibrate"`` (20%, at most 512 samples) is for calibration and choices before the
        measurement, ``"evaluate"`` (50%) for the measurement, ``"heldout"`` (30%) for promotion.
        With fewer than 20 samples, the first quarter calibrates and the rest is both other parts. A
        single sample is every part. The arrays of a part are copies.
        """
        if self.samples == 1:
            return self.take([0])
        if self.samples < _MIN_TO_SPLIT:
            first = max(1, self.samples // 4)
            return self.take(range(first) if part == "calibrate" else range(first, self.samples))
        order = np.random.default_rng(_SPLIT_SEED).permutation(self.samples)
        calibrate = min(round(self.samples * _CALIBRATE_SHARE), _MOST_TO_CALIBRATE)
        cut = round(self.samples * (1 - _HELDOUT_SHARE))
        chosen = {
            "calibrate": order[:calibrate],
            "evaluate": order[calibrate:cut],
            "heldout": order[cut:],
        }[part]
        return self.take(np.sort(chosen))


def load_dataset(path: Path, specs: Sequence[TensorSpec]) -> Dataset:
    """Read data for a model with the inputs ``specs``.

    A ``.npz`` holds one array per input, by input name (any name for a single input), and
    optionally ``labels``. A ``.npy`` holds the array of a single input. The first axis counts
    samples.

    Raises:
        ConfigError: When the file is unreadable or an array does not fit its input.
    """
    arrays, labels = read_arrays(path, [spec.name for spec in specs])
    missing = [s.name for s in specs if s.name not in arrays]
    if missing:
        raise ConfigError(
            f"data must hold an array for every input ({', '.join(s.name for s in specs)}), but "
            f"'{path}' holds {', '.join(arrays) or 'none'}"
        )
    chosen = {s.name: arrays[s.name] for s in specs}
    stacked = _stacked(path, chosen, specs)
    chosen = {s.name: _typed(path, chosen[s.name], s) for s in specs}
    counts = {len(a) for a in chosen.values()}
    if labels is not None:
        counts.add(len(labels))
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(
            f"every array of data must hold the same number of samples, at least 1, but '{path}' "
            f"holds {sorted(counts)}"
        )
    return Dataset(tuple(specs), chosen, labels, stacked)


def read_arrays(
    path: Path, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the arrays of a file by name, and its labels.

    Args:
        path: A ``.npz`` or ``.npy`` file.
        names: Names of the model's inputs; the only array of a file is the only input's.

    Raises:
        ConfigError: When the file is unreadable.
    """
    arrays = read_array_file(path)
    labels = _labels_of(path, arrays, names)
    if len(names) == 1 and len(arrays) == 1:
        arrays = {names[0]: next(iter(arrays.values()))}
    return arrays, labels


def read_labels(path: Path, names: Sequence[str]) -> np.ndarray | None:
    """Return the labels of a file alone, as :func:`read_arrays`; None without labels."""
    keys = {key for key in LABEL_KEYS if key not in names}
    return _labels_of(path, read_array_file(path, keys), names)


def _labels_of(
    path: Path, arrays: dict[str, np.ndarray], names: Sequence[str]
) -> np.ndarray | None:
    """Take the labels out of the arrays of a file."""
    key = next((key for key in LABEL_KEYS if key in arrays and key not in names), None)
    return None if key is None else _checked_labels(path, arrays.pop(key))


def random_dataset(specs: Sequence[TensorSpec], seed: int, kind: str) -> Dataset:
    """Return eight random inputs without labels; ``kind`` as in :mod:`tvmopt.random_inputs`."""
    arrays = random_arrays(specs, seed, kind, samples=8)
    return Dataset(tuple(specs), arrays, None, stacked=True, is_random=True)


def is_class_indices(labels: np.ndarray | None) -> bool:
    """Return whether the labels of a batch are class indices, one a row."""
    if labels is None or labels.dtype.kind not in "iu" or labels.ndim > 1:
        return False
    return not labels.size or int(labels.min()) >= 0


def require_class_indices(labels: np.ndarray | None, axes: int = 1) -> None:
    """Refuse labels that are no class indices, which ``metric=auto`` and ``top1`` take.

    Args:
        labels: Labels of all samples, or None.
        axes: Most axes of the labels: two where a sample is a whole input of several rows.

    Raises:
        ConfigError: Says which metrics there are for other labels.
    """
    if labels is None:
        return
    if labels.dtype.kind not in "iu" or labels.ndim > axes:
        raise ConfigError(
            "labels must be integer class indices, one a sample, for metric=auto and top1, but the "
            f"data holds {labels.dtype} {labels.shape}; give a metric for such labels, for "
            "example mean_absolute_error, mean_iou or your own file.py:function, or metric=fidelity"
        )
    if labels.size and labels.min() < 0:
        raise ConfigError(f"labels must be class indices from 0, but the data holds {labels.min()}")


def _checked_labels(path: Path, labels: np.ndarray) -> np.ndarray:
    if labels.ndim > 1 and labels.size == len(labels):
        labels = labels.reshape(len(labels))
    if labels.dtype.kind not in "biufU" or labels.ndim < 1:
        raise ConfigError(
            f"labels must be numbers or strings, one a sample on the first axis, but '{path}' "
            f"holds {labels.dtype} {labels.shape}"
        )
    return labels


def choose_dataset(
    data: Path | None, specs: Sequence[TensorSpec], part: str, *, seed: int, random_kind: str
) -> Dataset:
    """Return a part of the data (see :meth:`Dataset.split`), or random inputs without data."""
    if data is not None:
        return load_dataset(data, specs).split(part)
    return random_dataset(specs, seed, random_kind)


def _stacked(path: Path, arrays: dict[str, np.ndarray], specs: Sequence[TensorSpec]) -> bool:
    def fits(stacked: bool) -> bool:
        for spec in specs:
            shape = arrays[spec.name].shape[1:] if arrays[spec.name].ndim else None
            if shape != (spec.shape if stacked else spec.shape[1:]):
                return False
        return stacked or len({s.shape[:1] for s in specs}) == 1

    if fits(False) and all(spec.shape for spec in specs):
        return False
    if fits(True):
        return True
    got = ", ".join(f"{n}: {a.shape}" for n, a in arrays.items())
    rows = ", ".join(f"{s.name}: (N, {', '.join(map(str, s.shape[1:]))})" for s in specs)
    whole = ", ".join(f"{s.name}: (N, {', '.join(map(str, s.shape))})" for s in specs)
    raise ConfigError(
        f"data must hold N samples as rows ({rows}) or as whole inputs ({whole}), "
        f"but '{path}' holds {got}"
    )


def _typed(path: Path, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if spec.categories:
        return encoded(spec.name, spec.categories, array)
    dtype = np.dtype(spec.dtype)
    same_kind = array.dtype.kind == dtype.kind or (dtype.kind in "iu" and array.dtype.kind in "iu")
    if not same_kind and not (dtype.kind == "f" and array.dtype.kind in "iu"):
        raise ConfigError(
            f"data for input {spec.name!r} must be {spec.dtype}, but '{path}' holds {array.dtype}"
        )
    return array.astype(dtype, copy=False)

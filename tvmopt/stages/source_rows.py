"""The user's rows as arrays, with the source's predictions: a ``.npz`` for the other stages."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import LABEL_KEYS
from tvmopt.exporters.against_source import ComparedExport
from tvmopt.exporters.exported import Exported
from tvmopt.exporters.exported_session import input_dtypes
from tvmopt.exporters.table import SourceRows
from tvmopt.runtime.interface import LABELS

#: Prefix of the arrays with the source's predictions.
SOURCE_PREFIX = "source/"


def write_rows(path: Path, compared: ComparedExport, rows: SourceRows) -> None:
    """Write inputs, labels and the source's predictions as arrays."""
    found = compared.exported
    inputs = compared.interface.inputs(rows.table, input_dtypes(found.model), strict=False)
    arrays = {name: a.astype(str) if a.dtype.hasobject else a for name, a in inputs.items()}
    names = set(arrays)
    if rows.labels is not None:
        key = next(key for key in LABEL_KEYS if key not in names)
        arrays[key] = _labels(found, rows.labels)
    for name, values in compared.predictions.items():
        if values.dtype.kind not in "biuf":
            values = np.asarray(values, str)
        arrays[f"{SOURCE_PREFIX}{name}"] = values
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def _labels(found: Exported, labels: np.ndarray) -> np.ndarray:
    """Return labels as class indices for a classifier, else as they are."""
    if found.classes is None or found.answer != LABELS:
        return labels if labels.dtype.kind in "biuf" else np.asarray(labels, str)
    is_text = any(isinstance(value, str) for value in found.classes)
    plain = [str(v) if is_text else float(v) for v in labels.tolist()]
    order = {str(v) if is_text else float(v): at for at, v in enumerate(found.classes)}
    unknown = [value for value in plain if value not in order]
    if unknown:
        raise ConfigError(
            f"labels must be classes of the source ({', '.join(map(str, found.classes[:5]))}), "
            f"but data holds {unknown[0]!r}"
        )
    return np.array([order[value] for value in plain], np.int64)


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Return the source's predictions in a file of rows, by ONNX output; the answer's name is "".

    Empty for a file without them.
    """
    with np.load(path, allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            return {}
        found = [name for name in arrays.files if name.startswith(SOURCE_PREFIX)]
        return {name.removeprefix(SOURCE_PREFIX): arrays[name] for name in found}

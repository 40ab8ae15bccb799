"""Export a source model to ONNX, and compare it with the source; runs in a child process.

Writes the ONNX file, which carries the interface of the source, and the rows of the user as a
``.npz`` for the other stages, with the source's own predictions.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from tvmopt.errors import AccuracyError, ModelError, TvmoptError
from tvmopt.exporters.against_source import ComparedExport, compare_with_source
from tvmopt.exporters.exported_session import ExportedSession
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.table import SourceRows, read_rows
from tvmopt.frontend.categories import without_strings
from tvmopt.runtime.interface import INTERFACE_KEY
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.source_rows import write_rows

MODEL_FILE, ROWS_FILE = "model.onnx", "rows.npz"
_EXPORTERS = {
    "sklearn": "tvmopt.exporters.sklearn:export_sklearn",
    "xgboost": "tvmopt.exporters.xgboost:export_xgboost",
    "lightgbm": "tvmopt.exporters.lightgbm:export_lightgbm",
    "pytorch": "tvmopt.exporters.torch:export_torch",
}


def export(
    source: Mapping[str, Any],
    label: str,
    model_dir: Path,
    data: Path | None,
    out_dir: Path,
    progress: Progress,
) -> StageResult:
    """Export a model that MLflow saved.

    Args:
        source: Fields of its :class:`SourceModel`.
        label: Column of the labels in ``data``; empty for one of the usual names.
        model_dir: The saved model.
        data: Rows: a table, arrays, or the input example; None for none.
        out_dir: Gets the ONNX file and, with ``data``, the rows.
        progress: Called after each step.

    Raises:
        ConfigError, ModelError, EnvironmentSetupError: The model cannot be exported.
        AccuracyError: The ONNX model differs from the source on the rows.
    """
    described = SourceModel.from_dict(dict(source))
    rows = None if data is None else read_rows(data, described, label)
    progress(0, 2, "export")
    compared = _compared(described, model_dir, rows)
    model, said = compared.exported.model, compared.agreement
    progress(1, 2, "write")
    entry = model.metadata_props.add()
    entry.key, entry.value = INTERFACE_KEY, compared.interface.to_json()
    onnx.save_model(model, str(out_dir / MODEL_FILE))
    metrics: dict[str, float] = {}
    if rows is not None and said is not None:
        write_rows(out_dir / ROWS_FILE, compared, rows)
        metrics = {
            "source_rows": float(said.rows),
            "source_labels_differ": float(said.labels_differ),
            "source_max_difference": said.largest,
            "source_labelled": float(rows.labels is not None),
        }
    nodes = len(model.graph.node)
    first = f"{described.flavor} model {described.uri}: {nodes} ONNX nodes"
    return StageResult(metrics, {}, [first, *compared.lines])


def _compared(source: SourceModel, folder: Path, rows: SourceRows | None) -> ComparedExport:
    """Export with inputs of the dtype that fits; where that fails or differs, of another one."""
    failed: TvmoptError | None = None
    tried: set[str] = set()
    for dtype in _dtypes(source):
        if dtype in tried:
            continue
        try:
            found = _exporter(source.flavor)(source, folder, dtype)
            # Refuses a model that does more with texts than to compare.
            without_strings(found.model)
            session = ExportedSession(found.model)
            tried.add("float64" if "float64" in session.dtypes.values() else "float32")
            return compare_with_source(source, found, session, rows)
        except (AccuracyError, ModelError) as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _exporter(flavor: str) -> Any:
    module, _, name = _EXPORTERS[flavor].partition(":")
    return getattr(importlib.import_module(module), name)


def _dtypes(source: SourceModel) -> tuple[str, ...]:
    if source.flavor == "sklearn":
        return ("", "float32", "float64") if source.is_wide else ("float32",)
    both = source.is_wide and source.flavor == "lightgbm"
    return ("float32", "float64") if both else ("float32",)

"""Export a source model to ONNX, and compare it with the source; runs in a child process.

Writes the ONNX file, which carries the interface of the source, and the rows of the user as a
``.npz`` for the other stages, with the source's own predictions.
"""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import AccuracyError, ConfigError, ModelError, TvmoptError, in_one_line
from tvmopt.evaluate.dataset import LABEL_KEYS
from tvmopt.exporters.compare import TOLERANCE, SourceAgreement, agreement
from tvmopt.exporters.edges import refuses_all_unknown, with_edges
from tvmopt.exporters.exported import Exported
from tvmopt.exporters.probes import probes
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.table import SourceRows, read_rows
from tvmopt.exporters.unknown_categories import accept_unknown
from tvmopt.frontend.categories import read_tables, without_strings
from tvmopt.frontend.prepare import session_options
from tvmopt.runtime.interface import INTERFACE_KEY, LABELS, SourceInterface
from tvmopt.stages.result import Progress, StageResult

MODEL_FILE, ROWS_FILE = "model.onnx", "rows.npz"
#: Prefix of the arrays with the source's predictions, in the file of rows.
SOURCE_PREFIX = "source/"
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
    found, interface, said = _agreeing(described, model_dir, rows)
    progress(1, 2, "write")
    entry = found.model.metadata_props.add()
    entry.key, entry.value = INTERFACE_KEY, interface.to_json()
    onnx.save_model(found.model, str(out_dir / MODEL_FILE))
    metrics: dict[str, float] = {}
    if rows is not None and said is not None:
        _write_rows(out_dir / ROWS_FILE, found, interface, rows)
        metrics = {
            "source_rows": float(said.rows),
            "source_labels_differ": float(said.labels_differ),
            "source_max_difference": said.largest,
            "source_labelled": float(rows.labels is not None),
        }
    nodes = len(found.model.graph.node)
    lines = [f"{described.flavor} model {described.uri}: {nodes} ONNX nodes"]
    if said is not None:
        lines.append(f"ONNX against the source: {said.words}")
    return StageResult(metrics, {}, lines)


def _agreeing(
    source: SourceModel, folder: Path, rows: SourceRows | None
) -> tuple[Exported, SourceInterface, SourceAgreement | None]:
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
            session = _ExportedSession(found.model)
            tried.add("float64" if "float64" in session.dtypes.values() else "float32")
            return _compared(source, found, session, rows)
        except (AccuracyError, ModelError) as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _compared(
    source: SourceModel, found: Exported, session: _ExportedSession, rows: SourceRows | None
) -> tuple[Exported, SourceInterface, SourceAgreement | None]:
    """Return an export with its interface, and how it agrees with the source.

    Raises:
        AccuracyError: When it differs from the source.
    """
    if rows is None:
        return found, _interface(source, found, None), None
    interface = _interface(source, found, _predicted(found, rows, source))
    said = agreement(_answers(session, interface, found, rows.table), _references(found, rows))
    probed = said
    if said.is_exact and interface.columns:
        probed = _probed(session, interface, found, rows.table, said)
    if not probed.is_exact:
        where = "" if probed is said else ", on rows made of those of data"
        raise AccuracyError(
            f"the exported ONNX model must equal the source (all labels, numbers within "
            f"{TOLERANCE:g}), but: {probed.words}{where}"
        )
    if interface.columns:
        tables = read_tables(without_strings(found.model)).inputs
        given = rows.table, session.answer, tables, found.categories
        known = with_edges(interface, found, *given)
        accept_unknown(found.model, lambda: refuses_all_unknown(known, found, rows.table))
        return found, known, said
    return found, interface, said


def _probed(
    session: _ExportedSession,
    interface: SourceInterface,
    found: Exported,
    table: Any,
    said: SourceAgreement,
) -> SourceAgreement:
    """Return how an export agrees on rows made of those of a table; ``said`` without any."""
    for rows in probes(table):
        try:
            wanted = _references(found, SourceRows(rows, None))
        except Exception:  # the source refuses rows that nobody gave
            return said
        own = agreement(_answers(session, interface, found, rows), wanted)
        if not own.is_exact:
            return own
    return said


def _exporter(flavor: str) -> Any:
    module, _, name = _EXPORTERS[flavor].partition(":")
    return getattr(importlib.import_module(module), name)


def _dtypes(source: SourceModel) -> tuple[str, ...]:
    if source.flavor == "sklearn":
        return ("", "float32", "float64") if source.is_wide else ("float32",)
    both = source.is_wide and source.flavor == "lightgbm"
    return ("float32", "float64") if both else ("float32",)


class _ExportedSession:
    """The exported graph in ONNX Runtime."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime

        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(),
                session_options(model),
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise ModelError(
                f"ONNX Runtime must load the exported model, but says: {in_one_line(error)}"
            ) from error
        self.dtypes = {
            value.name: str(
                np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            )
            for value in model.graph.input
        }
        self._names = [output.name for output in model.graph.output]

    def outputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Raises:
            ModelError: When ONNX Runtime fails.
        """
        try:
            found = self._session.run(self._names, dict(inputs))
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise ModelError(
                f"ONNX Runtime must run the exported model, but says: {in_one_line(error)}"
            ) from error
        return dict(zip(self._names, found, strict=True))

    def answer(self, interface: SourceInterface, table: Any) -> np.ndarray:
        """Return the answer for a table, whatever values it holds."""
        inputs = interface.inputs(table, self.dtypes, strict=False)
        return np.asarray(interface.result(self.outputs(inputs)))


def _predicted(found: Exported, rows: SourceRows, source: SourceModel) -> np.ndarray:
    try:
        return np.asarray(found.predict(rows.table))
    except ModelError:
        raise
    except Exception as error:  # the source's refusal, of whatever class
        raise ConfigError(
            f"the source {source.uri!r} must predict the rows of data, but says: "
            f"{type(error).__name__}: {in_one_line(error)}"
        ) from error


def _references(found: Exported, rows: SourceRows) -> dict[str, np.ndarray]:
    """Return the source's answer, and its other predictions by ONNX output."""
    wanted = {"": np.asarray(found.predict(rows.table))}
    wanted |= {name: np.asarray(of(rows.table)) for name, of in found.references.items()}
    return wanted


def _answers(
    session: _ExportedSession, interface: SourceInterface, found: Exported, table: Any
) -> dict[str, np.ndarray]:
    outputs = session.outputs(interface.inputs(table, session.dtypes, strict=False))
    given = {"": np.asarray(interface.result(outputs))}
    return given | {name: outputs[name] for name in found.references}


def _interface(
    source: SourceModel, found: Exported, predicted: np.ndarray | None
) -> SourceInterface:
    """Return the interface, with the dtype and the axes of what the source predicted."""
    output = next(one for one in found.model.graph.output if one.name == found.output)
    axes = len(output.type.tensor_type.shape.dim)
    if predicted is None:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type))
        if found.classes is not None:
            dtype = np.asarray(found.classes).dtype
    else:
        dtype = predicted.dtype
    if dtype.kind not in "biufU":
        dtype = np.dtype(object)
    is_one = axes == 2 and output.type.tensor_type.shape.dim[1].dim_value == 1
    flat = is_one if predicted is None else axes == 2 and predicted.ndim == 1
    return SourceInterface(
        flavor=source.flavor,
        source=source.uri,
        signature=source.signature,
        columns=found.columns,
        answer=found.answer,
        output=found.output,
        classes=found.classes,
        dtype=str(dtype),
        flat=flat,
        as_table=source.flavor == "pytorch",
    )


def _write_rows(path: Path, found: Exported, interface: SourceInterface, rows: SourceRows) -> None:
    """Write inputs, labels and the source's predictions as arrays."""
    session = _ExportedSession(found.model)
    inputs = interface.inputs(rows.table, session.dtypes, strict=False)
    arrays = {name: a.astype(str) if a.dtype.hasobject else a for name, a in inputs.items()}
    names = set(arrays)
    if rows.labels is not None:
        key = next(key for key in LABEL_KEYS if key not in names)
        arrays[key] = _labels(found, rows.labels)
    predictions = {"": np.asarray(found.predict(rows.table))}
    predictions |= {name: np.asarray(of(rows.table)) for name, of in found.references.items()}
    for name, values in predictions.items():
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

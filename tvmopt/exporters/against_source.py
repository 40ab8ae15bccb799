"""Compare an export with its source, and derive how it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import AccuracyError, ConfigError, ModelError, in_one_line, last_line
from tvmopt.exporters.compare import TOLERANCE, SourceAgreement, agreement
from tvmopt.exporters.edges import refuses_all_unknown, with_edges
from tvmopt.exporters.exported import Exported
from tvmopt.exporters.exported_session import ExportedSession
from tvmopt.exporters.probes import probes
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.table import SourceRows
from tvmopt.exporters.unknown_categories import accept_unknown
from tvmopt.frontend.categories import read_tables, without_strings
from tvmopt.runtime.interface import SourceInterface


@dataclasses.dataclass(frozen=True)
class ComparedExport:
    """An export that equals its source.

    Attributes:
        exported: The export.
        interface: How it is called.
        predictions: Answer of the source for the user's rows, and its other predictions, by ONNX
            output; empty without rows.
        agreement: How it agrees with the source on the user's rows; None without rows.
        lines: What was compared, in words.
    """

    exported: Exported
    interface: SourceInterface
    predictions: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    agreement: SourceAgreement | None = None
    lines: tuple[str, ...] = ()


def compare_with_source(
    source: SourceModel, found: Exported, session: ExportedSession, rows: SourceRows | None
) -> ComparedExport:
    """Compare an export with its source, on the rows of the user and on rows made of them.

    Args:
        source: The source.
        found: Its export.
        session: The export in ONNX Runtime.
        rows: The rows; None for none.

    Raises:
        AccuracyError: When an answer differs.
        ConfigError: When the source refuses the rows.
    """
    if rows is None:
        return ComparedExport(found, _interface(source, found, None))
    answer = _predicted(found, rows, source)
    predictions = {"": answer, **_references(found, rows.table)}
    interface = _interface(source, found, answer)
    said = agreement(_answers(session, interface, found, rows.table), predictions)
    _require_exact(said)
    lines = [f"ONNX against the source: {said.words}"]
    if interface.columns:
        lines.append(_compare_probes(session, interface, found, rows.table))
        tables = read_tables(without_strings(found.model)).inputs
        given = rows.table, session.answer, tables, found.categories
        known = with_edges(interface, found, *given)
        accept_unknown(found.model, lambda: refuses_all_unknown(known, found, rows.table))
        interface = known
    return ComparedExport(found, interface, predictions, said, tuple(lines))


def _require_exact(said: SourceAgreement, where: str = "") -> None:
    if not said.is_exact:
        raise AccuracyError(
            f"the exported ONNX model must equal the source (all labels, numbers within "
            f"{TOLERANCE:g}), but: {said.words}{where}"
            "; report the model as a bug, or export it to ONNX yourself"
        )


def _compare_probes(
    session: ExportedSession, interface: SourceInterface, found: Exported, table: Any
) -> str:
    """Compare on rows made from the rows of a table; return a line of what was compared."""
    count, made = 0, "rows made of those of data"
    for rows in probes(table):
        try:
            wanted = {"": np.asarray(found.predict(rows)), **_references(found, rows)}
        except Exception as error:  # the source refuses rows that nobody gave
            return f"{made}: {count} compared; the source refuses others: {last_line(error, 120)}"
        own = agreement(_answers(session, interface, found, rows), wanted)
        _require_exact(own, f", on {made}")
        count += own.rows
    return f"{made}: {count} compared, all equal"


def _predicted(found: Exported, rows: SourceRows, source: SourceModel) -> np.ndarray:
    try:
        return np.asarray(found.predict(rows.table))
    except ModelError:
        raise
    except Exception as error:  # the source's refusal, of whatever class
        raise ConfigError(
            f"the source {source.uri!r} must predict the rows of data, but says: "
            f"{type(error).__name__}: {in_one_line(error)}"
            "; give rows that the source takes"
        ) from error


def _references(found: Exported, table: Any) -> dict[str, np.ndarray]:
    """Return the source's predictions besides its answer, by ONNX output."""
    return {name: np.asarray(of(table)) for name, of in found.references.items()}


def _answers(
    session: ExportedSession, interface: SourceInterface, found: Exported, table: Any
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

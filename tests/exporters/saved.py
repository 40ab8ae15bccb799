"""Save small fitted models as MLflow does, and export them in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas
import yaml
from mlflow.models import infer_signature

from tvmopt.exporters.source import SourceModel, describe
from tvmopt.frontend.source_interface import interface_of
from tvmopt.runtime.interface import SourceInterface
from tvmopt.stages.export import MODEL_FILE, ROWS_FILE, export

COUNT, WIDTH = 400, 5


def table(*, missing: bool = False, seed: int = 0) -> pandas.DataFrame:
    """Return rows of numbers."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(COUNT, WIDTH))
    if missing:
        values[random.random(values.shape) < 0.1] = np.nan
    return pandas.DataFrame(values, columns=[f"column {at}" for at in range(WIDTH)])


def labels(rows: pandas.DataFrame, classes: int = 3) -> np.ndarray:
    """Return a class of each row."""
    total = np.nan_to_num(rows.to_numpy()).sum(axis=1)
    return np.digitize(total, np.quantile(total, np.arange(1, classes) / classes))


@dataclasses.dataclass(frozen=True)
class ExportedFiles:
    """An exported model: its ONNX file and what came of it."""

    folder: Path
    model: onnx.ModelProto
    interface: SourceInterface
    lines: list[str]

    def run(self, rows: Any, *, strict: bool = True) -> Any:
        """Return the answer of the ONNX model, as ``predict`` of a compiled model gives it."""
        import onnxruntime

        session = onnxruntime.InferenceSession(self.model.SerializeToString())
        types = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64",
                 "tensor(string)": "object"}  # fmt: skip
        dtypes = {value.name: types[value.type] for value in session.get_inputs()}
        inputs = self.interface.inputs(rows, dtypes, strict=strict)
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, inputs), strict=True))
        return self.interface.result(outputs, getattr(rows, "index", None))


def save(
    folder: Path, flavor: Any, model: Any, example: Any, predictions: Any, **options: Any
) -> tuple[Path, dict[str, Any]]:
    """Save a model with MLflow; return the folder and its MLmodel."""
    saved = folder / "saved"
    signature = infer_signature(example, predictions)
    options = {"pip_requirements": ["numpy"], **options}  # finding them out takes seconds
    flavor.save_model(model, str(saved), signature=signature, **options)
    return saved, yaml.safe_load((saved / "MLmodel").read_text())


def exported(
    folder: Path, flavor: Any, model: Any, rows: Any, *, trust: bool = True, **options: Any
) -> ExportedFiles:
    """Save a fitted model, and export it with ``rows`` as its data."""
    method = options.get("pyfunc_predict_fn", "predict")
    saved, said = save(
        folder, flavor, model, rows[:20], getattr(model, method)(rows[:20]), **options
    )
    source = describe("models:/source/1", said["flavors"], said["signature"], trust)
    return export_files(folder, saved, source, rows)


def export_files(folder: Path, saved: Path, source: SourceModel, rows: Any) -> ExportedFiles:
    """Export a saved model in this process."""
    out = folder / "out"
    out.mkdir()
    if isinstance(rows, np.ndarray):
        data = folder / "data.npz"
        np.savez(data, rows=rows)
    else:
        data = folder / "data.parquet"
        rows.to_parquet(data)
    done = export(source.to_dict(), "", saved, data, out, lambda *told: None)
    model = onnx.load(out / MODEL_FILE)
    assert (out / ROWS_FILE).is_file()
    interface = interface_of(model)
    assert interface is not None
    return ExportedFiles(out, model, interface, done.changed)

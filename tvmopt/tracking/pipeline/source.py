"""Models of scikit-learn, XGBoost, LightGBM and PyTorch as the parameter ``model``.

The saved model is exported to ONNX in a child process, which alone reads its file. Its rows come
from the parameter ``data``, else from the data set of its run or the input example of the version.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tvmopt.errors import ConfigError
from tvmopt.exporters.exported import ROWS
from tvmopt.exporters.source import describe
from tvmopt.exporters.table import TABLE_ENDINGS
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.shapes import declared_dims
from tvmopt.frontend.source_interface import interface_of
from tvmopt.parameters.groups import TuningParameters
from tvmopt.runtime.interface import VALUES
from tvmopt.scratch import scratch_folder
from tvmopt.stages.export import MODEL_FILE, ROWS_FILE
from tvmopt.stages.launch import launch
from tvmopt.stages.torch_peer import write_torch_source
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.pipeline.request import Asked
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.model_source import SavedSource

#: File that says how to load a model of PyTorch, beside its ONNX file.
TORCH_FILE = "torch_source.json"
#: Sizes of a batch that a model is compiled for by default: of a table, and of tensors.
TABLE_SHAPES, TENSOR_SHAPES = "rows=1,100,10000", "rows=1,100"
#: Configurations that are measured of one function of a table's model, where the user says nothing:
#: such functions are small, and three sizes of them are tuned.
TABLE_TOPK = 4
#: Seconds to tune a model of tables or a small network for, where the user says nothing; the
#: functions that take longest come first.
SMALL_TUNING_S = 10.0
#: A network of PyTorch whose ONNX file is smaller is small.
SMALL_NETWORK_BYTES = 1_000_000
#: Most seconds for the latency of one contender: a call of 10,000 rows may take 0.1 s, and 15 calls
#: bound its median well enough.
SOURCE_LATENCY_S = 1.5
_LABELLED = "source_labelled"


def export_source(
    saved: SavedSource, asked: Asked, work: Path, allowance: Allowance
) -> tuple[Path, Path | None, Asked]:
    """Export a saved model to an ONNX file below ``work``.

    Returns:
        The ONNX file; the rows as ``.npz``, or None without any; and the parameters, with the
        defaults of such a model.

    Raises:
        TvmoptError: As :func:`tvmopt.stages.export.export`, and what ends the child process.
    """
    source = describe(saved.uri, saved.flavors, saved.signature, asked.model.trust)
    data = _data(saved, asked.model.data)
    work.mkdir(parents=True, exist_ok=True)
    if source.flavor == "pytorch":
        write_torch_source(work / TORCH_FILE, source, saved.folder)
    inputs = {"model": saved.folder}
    if data is not None:
        inputs["data"] = data
    with scratch_folder() as logs:
        done = launch(
            "export",
            {"source": source.to_dict(), "label": asked.model.label},
            inputs,
            work,
            logs / "log.txt",
            _silent,
            threads=1,
            allowance=allowance,
            in_run=False,
        )
    for line in done.changed:
        say(f"export     {line}")
    model, rows = work / MODEL_FILE, work / ROWS_FILE
    of_model, metric = asked.model, asked.metric
    loaded = load_onnx(model)
    interface = interface_of(loaded)
    dims = declared_dims(loaded.graph.input[0])
    if not of_model.input_shapes and dims and dims[0] == ROWS:
        shapes = TENSOR_SHAPES if source.flavor == "pytorch" else TABLE_SHAPES
        of_model = dataclasses.replace(of_model, input_shapes=shapes)
    values = interface is not None and interface.answer == VALUES
    tuning = _tuning(asked.tuning, source.flavor != "pytorch", model.stat().st_size)
    if metric.metric == "auto" and done.metrics.get(_LABELLED):
        metric = dataclasses.replace(metric, metric="r2" if values else metric.metric)
    found = dataclasses.replace(asked, model=of_model, metric=metric, tuning=tuning)
    return model, rows if rows.is_file() else None, found


def _tuning(given: TuningParameters, is_table: bool, model_bytes: int) -> TuningParameters:
    """Return how to tune; what the user gives stays.

    Args:
        given: The parameters.
        is_table: Whether the model takes a table.
        model_bytes: Size of the ONNX file.
    """
    defaults: dict[str, float] = {}
    if is_table and given.topk == TuningParameters.topk:
        defaults["topk"] = TABLE_TOPK
    is_small = is_table or model_bytes < SMALL_NETWORK_BYTES
    if is_small and given.time_budget == TuningParameters.time_budget:
        defaults["time_budget"] = SMALL_TUNING_S
    return TuningParameters(**{**given.values(), **defaults})


def _data(saved: SavedSource, given: str) -> Path | None:
    """Return the file with rows: the user's, the data set of the run, or the input example."""
    if given:
        path = Path(given).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(
                "data must be an existing table (.csv, .parquet) or .npz file, but there is none "
                f"at '{path}'"
            )
        return path
    return _logged_table(saved.run_id) or saved.example


def _logged_table(run_id: str) -> Path | None:
    """Return a local table that the run of the source logged as its data set; None for none."""
    if not run_id:
        return None
    try:
        inputs = MlflowClient().get_run(run_id).inputs
    except MlflowException:  # the run may be gone, or on another server
        return None
    for entry in inputs.dataset_inputs if inputs else []:
        try:
            found = json.loads(entry.dataset.source)
        except ValueError:
            continue
        uri = found.get("uri") or found.get("path") if isinstance(found, dict) else None
        parsed = urlparse(str(uri or ""))
        path = Path(unquote(parsed.path))
        if parsed.scheme in ("", "file") and path.suffix in TABLE_ENDINGS and path.is_file():
            return path
    return None


def _silent(done: int, total: int, text: str) -> None:
    """Progress of a short step is not shown."""

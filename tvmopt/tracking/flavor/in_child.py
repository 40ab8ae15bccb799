"""Process untrusted files in a limited child process, outside of stage runs.

ONNX Runtime's optimiser can hang or eat memory on a model, and a compiled library can crash. In a
separate process neither takes the command along.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from mlflow import MlflowClient

from tvmopt.errors import TvmoptError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.frontend.layers import Layer
from tvmopt.parameters.groups import MetricParameters
from tvmopt.remote import Board
from tvmopt.scratch import scratch_folder
from tvmopt.stages.heldout import read_accuracy
from tvmopt.stages.launch import launch
from tvmopt.stages.layers import read_layers
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.verify import SavedModel

_LOG = "heldout.log"


def model_layers(model: Path, input_shapes: str, allowance: Allowance) -> list[Layer]:
    """Return the layer table of an ONNX model.

    Raises:
        ConfigError, ModelError: When the model or its shapes are refused.
        LimitError, StageFailedError: When the process passed its limits, or crashed.
    """
    with scratch_folder() as folder:
        launch(
            "prepare",
            {"input_shapes": input_shapes},
            {"model": model},
            folder,
            folder / "log.txt",
            _silent,
            threads=1,
            allowance=allowance,
            in_run=False,
        )
        return read_layers(folder)


def check_golden(saved: SavedModel, allowance: Allowance) -> None:
    """Load a saved model and run its golden input.

    Raises:
        TvmoptError: When it is refused, gives other numbers, passes its limits, or crashes.
    """
    with scratch_folder() as folder:
        launch(
            "golden",
            {"metadata_sha256": saved.metadata_sha256},
            {"bundle": saved.bundle},
            folder,
            folder / "log.txt",
            _silent,
            threads=saved.metadata.threads,
            allowance=allowance,
            in_run=False,
        )


def heldout_accuracy(
    client: MlflowClient,
    saved: SavedModel,
    converted: Path,
    data: Path | None,
    metric: MetricParameters,
    work_dir: Path,
    board: Board | None,
    allowance: Allowance,
    run_id: str | None,
) -> Accuracy:
    """Check the golden output; return accuracy on held-out samples and the float reference's.

    Args:
        client: Client of the store.
        saved: The model, verified.
        converted: Artifacts of its convert run.
        data: Evaluation data; None for random inputs.
        metric: What accuracy means.
        work_dir: Folder for temporary files.
        board: Where the model runs, if not here.
        allowance: What the process may use.
        run_id: Run that gets the log when the check fails; None for none.

    Raises:
        TvmoptError: When the model or the data is refused, when the process passes its limits, or
            when it crashes.
    """
    out_dir = Path(tempfile.mkdtemp(prefix="heldout-", dir=work_dir))
    inputs = {"bundle": saved.bundle, "convert": converted}
    if data is not None:
        inputs["data"] = data
    config = {
        "metadata_sha256": saved.metadata_sha256,
        **metric.values(),
        "board": None if board is None else dataclasses.asdict(board),
    }
    try:
        launch(
            "heldout",
            config,
            inputs,
            out_dir,
            out_dir / _LOG,
            _silent,
            threads=saved.metadata.threads,
            allowance=allowance,
            in_run=run_id is not None,
        )
    except TvmoptError:
        if run_id is not None and (out_dir / _LOG).exists():
            client.log_artifact(run_id, str(out_dir / _LOG))
        raise
    return read_accuracy(out_dir)


def _silent(done: int, total: int, text: str) -> None:
    """Progress of a short step is not shown."""

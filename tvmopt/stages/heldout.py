"""Run a registered model in a child process: its golden input, and held-out samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.digest import sha256_file
from tvmopt.errors import AccuracyError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Dataset, choose_dataset, read_arrays
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.exporters.compare import TOLERANCE, agreement
from tvmopt.frontend.reference import Reference
from tvmopt.metrics.metric import Metric
from tvmopt.parameters.groups import MetricParameters
from tvmopt.remote import Board
from tvmopt.remote.model import RemoteModel
from tvmopt.remote.session import open_session
from tvmopt.runtime import CompiledModel, load
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.float_session import FloatModelCall
from tvmopt.stages.kept_outputs import with_kept_outputs
from tvmopt.stages.module_files import REFERENCE_FILE
from tvmopt.stages.result import StageResult
from tvmopt.stages.signature import Signature
from tvmopt.stages.source_rows import read_predictions

_FILE = "accuracy.json"


def check_golden(bundle: Path, metadata_sha256: str) -> StageResult:
    """Load a compiled model and run its golden input.

    Raises:
        ArtifactError: When hash, TVM version or machine do not fit.
        AccuracyError: When the output deviates by more than the model's tolerance.
    """
    deviation = load(bundle, metadata_sha256).check_golden(bundle)
    return StageResult({"golden_deviation": deviation}, {}, [])


def measure_heldout(
    bundle: Path,
    metadata_sha256: str,
    convert_dir: Path,
    data: Path | None,
    out_dir: Path,
    metric: str = "auto",
    metric_goal: str = "",
    metric_alphabet: str = "",
    metric_blank: int = 0,
    board: dict[str, Any] | None = None,
) -> StageResult:
    """Check the golden output of a compiled model and measure its accuracy on held-out samples.

    Args:
        bundle: Folder of the compiled model.
        metadata_sha256: Hash that its ``model.json`` must have, hex.
        convert_dir: Output of the convert stage; holds the float reference.
        data: ``.npz`` or ``.npy`` file, whose held-out part is used; None for random inputs.
        out_dir: Gets the accuracy; :func:`read_accuracy` reads it.
        metric: The parameter ``metric``.
        metric_goal: The parameter ``metric_goal``.
        metric_alphabet: The parameter ``metric_alphabet``.
        metric_blank: The parameter ``metric_blank``.
        board: Fields of the :class:`Board` where the model runs, if not here.

    Raises:
        ConfigError: When the data does not fit the model, or there is no such board.
        ArtifactError, AccuracyError: As :func:`check_golden`.
    """
    signature = Signature.read(convert_dir)
    dataset = choose_dataset(
        data, signature.inputs, "heldout", seed=2, random_kind=signature.random_inputs
    )
    asked = MetricParameters(
        metric=metric,
        metric_goal=metric_goal,
        metric_alphabet=metric_alphabet,
        metric_blank=metric_blank,
    )
    measured = asked_metric(asked, signature.outputs, dataset)
    file = convert_dir / REFERENCE_FILE
    reference = with_kept_outputs(Reference(str(file)), sha256_file(file))
    if board is None:
        model = load(bundle, metadata_sha256)
        model.check_golden(bundle)
        if data is not None and not signature.is_rounded:
            check_source(model, data)
        accuracy = _accuracy(model, measured, reference, dataset, signature)
    else:
        with open_session(Board(**board)) as session:
            remote = RemoteModel(session, bundle)
            remote.check_golden(bundle)
            accuracy = _accuracy(remote, measured, reference, dataset, signature)
            del remote  # what lies on the board is freed while there is a session
    (out_dir / _FILE).write_text(json.dumps(dataclasses.asdict(accuracy)))
    return StageResult({"samples": float(accuracy.samples)}, {}, [])


def read_accuracy(out_dir: Path) -> Accuracy:
    """Read what :func:`measure_heldout` wrote."""
    return Accuracy(**json.loads((out_dir / _FILE).read_text()))


def check_source(model: CompiledModel, data: Path) -> None:
    """Compare a model with the predictions of its source, where ``data`` holds these.

    Raises:
        AccuracyError: When a label differs, or a number by more than 1e-5.
    """
    interface = model.metadata.interface
    predictions = read_predictions(data) if interface is not None else {}
    if interface is None or not predictions:
        return
    names = [spec.name for spec in model.metadata.inputs]
    arrays, _ = read_arrays(data, names)
    outputs = dict(model({name: arrays[name] for name in names}).items())
    answers = {"": np.asarray(interface.result(outputs)), **outputs}
    said = agreement(answers, predictions)
    if not said.is_exact:
        raise AccuracyError(
            f"the compiled model must equal its source {interface.source} (all labels, numbers "
            f"within {TOLERANCE:g}), but: {said.words}"
            "; report the model as a bug"
        )


def _accuracy(
    model: CompiledModel | RemoteModel,
    metric: Metric | str,
    reference: FloatModelCall,
    dataset: Dataset,
    signature: Signature,
) -> Accuracy:
    meter = AccuracyMeter(
        metric,
        dataset.labels is not None,
        signature.tolerance,
        class_scores=signature.class_scores.on(random_inputs=dataset.is_random),
        is_expected=True,
    )
    run = model.coded if isinstance(model, CompiledModel) else model
    rounding = InputRounding({} if dataset.is_random else dataset.arrays)
    for batch in dataset.batches():
        outputs, expected = run(batch.inputs), reference(batch.inputs)
        again = rounding.first_outputs(reference, batch.inputs) if meter.takes_again else []
        meter.add(outputs, expected, batch.labels, batch.valid, batch.padding, again)
    return meter.result(with_interval=True)

"""Accuracy of compiled models beside the float model, on the same batches, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tvmopt.errors import AccuracyError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Dataset
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.metrics.metric import Metric
from tvmopt.stages.comparison_table import CANDIDATE
from tvmopt.stages.float_session import FloatModelCall
from tvmopt.stages.signature import Signature

_BASELINE_ACCURACY_S = 5.0


def compare_accuracy(
    metric: Metric | str,
    models: Mapping[str, Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]],
    reference: FloatModelCall,
    dataset: Dataset,
    signature: Signature,
    *,
    most_samples: int,
    time_limit_s: float,
) -> dict[str, Accuracy]:
    """Return the accuracy of each model; of a slow baseline on fewer batches, or none.

    Args:
        metric: What accuracy means.
        models: Functions from inputs to outputs, by label; the candidate is one of them.
        reference: The float model.
        dataset: Evaluation data.
        signature: Tolerance and class scores of the model.
        most_samples: Most samples to measure on.
        time_limit_s: Most seconds, of all models together, so that fewer samples may be seen; 0 for
            no limit.

    Raises:
        AccuracyError: When the candidate's outputs do not follow the float model's.
    """
    if dataset.samples > most_samples:
        dataset = dataset.take(range(most_samples))
    has_labels = dataset.labels is not None
    scores = signature.class_scores.on(random_inputs=dataset.is_random)
    meters = {
        label: AccuracyMeter(
            metric, has_labels, signature.tolerance, class_scores=scores, is_expected=True
        )
        for label in models
    }
    rounding = InputRounding({} if dataset.is_random else dataset.arrays)
    spent = dict.fromkeys(models, 0.0)
    began = time.perf_counter()
    for number, batch in enumerate(dataset.batches()):
        # ONNX Runtime's time counts: on the CPU it may be a thousand times as slow as a GPU.
        if number and 0 < time_limit_s < time.perf_counter() - began:
            break
        expected = reference(batch.inputs)
        again = []
        if meters[CANDIDATE].takes_again:
            again = rounding.first_outputs(reference, batch.inputs)
        for label, model in models.items():
            # Untuned TVM computes the same numbers, but may need hours for all of the data.
            if label != CANDIDATE and spent[label] > _BASELINE_ACCURACY_S:
                meters.pop(label, None)
                continue
            start = time.perf_counter()
            outputs = model(batch.inputs)
            spent[label] += time.perf_counter() - start
            meters[label].add(outputs, expected, batch.labels, batch.valid, batch.padding, again)
    found = {
        label: meter.result(with_interval=label == CANDIDATE) for label, meter in meters.items()
    }
    _refuse_nonsense(found[CANDIDATE], signature.min_cosine)
    return found


def _refuse_nonsense(accuracy: Accuracy, min_cosine: float) -> None:
    if accuracy.cosine < min_cosine:
        raise AccuracyError(
            f"the candidate's outputs must follow the float model's (cosine at least "
            f"{min_cosine:g}), but the cosine is {accuracy.cosine:.4f}; its latency was not "
            "measured"
        )

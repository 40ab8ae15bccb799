"""The champion of a search beside ONNX Runtime and OpenVINO, with the accuracy of each.

``python -m benchmarks.search_champion --name NAME [--tracking_uri URI] [--data FILE.npz]
[--threads N] [--seconds S]`` loads ``models:/NAME@champion`` and the float model that it was made
of, computes each contender's accuracy drop on the evaluation part of the data (fidelity on random
inputs without), lets all take turns in this process, and prints one table. OpenVINO takes part in
float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import peers, report
from benchmarks.interleave import Timing, interleave

Model = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
_MOST_SAMPLES = 256


def main() -> int:
    """Run the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="registered model")
    parser.add_argument("--tracking_uri", default="", help="default: as MLflow finds it")
    parser.add_argument("--data", default="", help="the search's data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each contender")
    asked = parser.parse_args()
    peers.set_threads(asked.threads)
    import mlflow

    if asked.tracking_uri:
        mlflow.set_tracking_uri(asked.tracking_uri)
    report.print_environment(report.environment(asked.threads), ("openvino",))
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        rows = _measure(asked.name, asked.data, asked.threads, asked.seconds, Path(scratch))
    print(_table(rows))
    return 0


def _measure(
    name: str, data: str, threads: int, seconds: float, scratch: Path
) -> list[tuple[str, Timing, float]]:
    from mlflow import MlflowClient

    from tvmopt.evaluate.accuracy import AccuracyMeter
    from tvmopt.evaluate.dataset import choose_dataset
    from tvmopt.frontend.reference import Reference
    from tvmopt.stages.module_files import REFERENCE_FILE
    from tvmopt.stages.signature import Signature
    from tvmopt.tracking import flavor
    from tvmopt.tracking.artifacts import local_artifacts

    client = MlflowClient()
    version = client.get_model_version_by_alias(name, "champion")
    champion = flavor.load_model(f"models:/{name}/{version.version}")
    converted = local_artifacts(client, version.tags["convert_run"], scratch)
    model = onnx.load_model(str(converted / REFERENCE_FILE))
    reference = Reference(model, threads)
    tags = version.tags
    ours = f"champion: {tags['dtype']} {tags['layout']} {tags['strategy']}"
    contenders: dict[str, Model] = {ours: champion, "ONNX Runtime float32": reference}
    if peers.available("openvino"):
        for precision in ("f32", "bf16"):
            contenders[f"OpenVINO {precision}"] = peers.openvino_model(model, threads, precision)
    dataset = choose_dataset(
        Path(data) if data else None,
        champion.metadata.inputs,
        "evaluate",
        seed=1,
        random_kind=Signature.read(converted).random_inputs,
    )
    if dataset.samples > _MOST_SAMPLES:
        dataset = dataset.take(range(_MOST_SAMPLES))
    meters = {label: AccuracyMeter("auto", dataset.labels is not None) for label in contenders}
    for batch in dataset.batches():
        expected = [np.array(array) for array in reference(batch.inputs)]
        for label, call in contenders.items():
            got = [np.array(array) for array in call(batch.inputs)]
            meters[label].add(got, expected, batch.labels, batch.valid, batch.padding)
    inputs = dataset.batch(0).inputs
    timings = interleave(
        {label: _bound(call, inputs) for label, call in contenders.items()}, time_limit_s=seconds
    )
    return [(label, timings[label], meters[label].result().drop) for label in contenders]


def _bound(call: Model, inputs: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: call(inputs)


def _table(rows: Sequence[tuple[str, Timing, float]]) -> str:
    from tvmopt.tracking.report import as_text

    ours = rows[0][1].median
    cells = [["contender", "p50 ms (95% interval)", "of it ours takes", "accuracy drop"]]
    for label, timing, drop in rows:
        cells.append([label, str(timing), f"{ours / timing.median:.2f}", f"{drop:+.4f}"])
    return as_text(cells)


if __name__ == "__main__":
    raise SystemExit(main())

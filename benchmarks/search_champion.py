"""Compare the champion of a search with ONNX Runtime and OpenVINO: latency and accuracy drop.

Usage: ``python -m benchmarks.search_champion --name NAME [--tracking_uri URI] [--data FILE.npz]
[--threads N] [--seconds S]``

The script loads ``models:/NAME@champion`` and its float32 source model. It computes the accuracy
drop of each contender on the evaluation split of the data, or the fidelity on random inputs without
``--data``. It times all contenders interleaved in one process and prints one table. OpenVINO runs
in float32 and in bfloat16.
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

Predict = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
_MAX_SAMPLES = 256


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="name of the registered model")
    parser.add_argument("--tracking_uri", default="", help="default: that of MLflow")
    parser.add_argument("--data", default="", help="data file of the search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="timing limit in seconds")
    args = parser.parse_args()
    peers.set_threads(args.threads)
    import mlflow

    if args.tracking_uri:
        mlflow.set_tracking_uri(args.tracking_uri)
    report.print_environment(report.environment(args.threads), ("openvino",))
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        rows = _measure(args.name, args.data, args.threads, args.seconds, Path(scratch))
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
    from tvmopt.tracking.store.artifacts import local_artifacts

    client = MlflowClient()
    version = client.get_model_version_by_alias(name, "champion")
    champion = flavor.load_model(f"models:/{name}/{version.version}")
    converted = local_artifacts(client, version.tags["convert_run"], scratch)
    model = onnx.load_model(str(converted / REFERENCE_FILE))
    reference = Reference(model, threads)
    tags = version.tags
    ours = f"champion: {tags['dtype']} {tags['layout']} {tags['strategy']}"
    contenders: dict[str, Predict] = {ours: champion, "ONNX Runtime float32": reference}
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
    if dataset.samples > _MAX_SAMPLES:
        dataset = dataset.take(range(_MAX_SAMPLES))
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


def _bound(call: Predict, inputs: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: call(inputs)


def _table(rows: Sequence[tuple[str, Timing, float]]) -> str:
    from tvmopt.tracking.report.tables import as_text

    ours = rows[0][1].median
    cells = [["contender", "p50 ms (95% interval)", "champion / contender", "accuracy drop"]]
    for label, timing, drop in rows:
        cells.append([label, str(timing), f"{ours / timing.median:.2f}", f"{drop:+.4f}"])
    return as_text(cells)


if __name__ == "__main__":
    raise SystemExit(main())

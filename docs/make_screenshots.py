"""Make the pictures of MLflow's UI: ``python -m docs.make_screenshots``.

It runs the bundled example and a small search in a store of their own, starts ``mlflow ui``, and
takes ``docs/images/*.png`` with headless Chromium. It takes about five minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import mlflow
from mlflow.entities import Run

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "images"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_EXAMPLE, _SEARCH = "digits-cnn", "digits-search"
_RUNS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("main", {"strategy": "default"}),
    ("main", {"topk": "5"}),
    ("search", {"name": _SEARCH, "trials": "10", "topk": "5", "dtypes": "float32,int8"}),
)
_WAIT_S, _PAGE_MS = 60.0, 20_000
_AXES = {"params": ["dtype", "layout", "effort"], "metrics": ["latency_ms_p50"]}


def make_runs(folder: Path) -> str:
    """Run the commands in a store in ``folder``; return its URI."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM"))}
    env = {**kept, "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    for entry, params in _RUNS:
        words = [word for name, value in params.items() for word in (f"--{name}", value)]
        subprocess.run(
            [sys.executable, "-m", f"flows.{entry}", *words], cwd=ROOT, env=env, check=True
        )
    return uri


@contextmanager
def ui(uri: str, folder: Path) -> Iterator[str]:
    """Serve the UI of a store; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.5)
        else:
            raise RuntimeError(f"mlflow ui must answer within {_WAIT_S:.0f} s, but it does not")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def shoot(address: str, path: Path, width: int, height: int) -> None:
    """Take a picture of a page when its requests are done."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise RuntimeError(f"a browser must be on PATH ({', '.join(_BROWSERS)}), but none is")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--virtual-time-budget={_PAGE_MS}",
                f"--screenshot={path}",
                address,
            ],
            check=True,
            capture_output=True,
            timeout=180,
        )


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory(prefix="tvmopt-screenshots-") as name:
        folder = Path(name)
        uri = make_runs(folder)
        client = mlflow.MlflowClient(uri)
        with ui(uri, folder) as address:
            example = _experiment(client, _EXAMPLE)
            shoot(f"{address}/#/experiments/{example}/runs", FOLDER / "runs.png", 1280, 640)
            search = _experiment(client, _SEARCH)
            shoot(_compared(client, address, search), FOLDER / "search.png", 1000, 900)


def _experiment(client: mlflow.MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        raise RuntimeError(f"experiment {name!r} must be there after its run, but it is not")
    return str(found.experiment_id)


def _compared(client: mlflow.MlflowClient, address: str, experiment: str) -> str:
    """Return the address of the compare view of a search's finished trials."""
    query = "tags.`tvmopt.trial` != '' and attributes.status = 'FINISHED'"
    runs: list[Run] = client.search_runs([experiment], query)
    ids = quote(json.dumps([run.info.run_id for run in runs]))
    return f"{address}/#/compare-runs?runs={ids}&experiments={quote(json.dumps([experiment]))}"


if __name__ == "__main__":
    main()

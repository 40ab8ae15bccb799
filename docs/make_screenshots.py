"""Make the pictures of MLflow's UI: ``python -m docs.make_screenshots``.

It runs the bundled example and a small search in a store of their own, starts ``mlflow ui``, and
takes ``docs/images/*.png`` with headless Chromium. It takes about five minutes. With a folder as
argument, the store stays there, and what an earlier run has done is reused.
"""

from __future__ import annotations

import argparse
import json
import os
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
from PIL import Image

from docs.browser import Browser

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "images"
_EXAMPLE, _SEARCH = "digits-cnn", "digits-search"
_RUNS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("main", {"strategy": "default"}),
    ("main", {"topk": "5"}),
    (
        "search",
        {
            "name": _SEARCH,
            "trials": "6",
            "topk": "5",
            "dtypes": "float32,int8",
            "layouts": "NHWC,NCHW",
            "strategies": "default,fast",
            "time_budget": "0",
        },
    ),
)
_WAIT_S, _SETTLE_S = 120.0, 3.0
# JavaScript of the UI's parts: rows of the table, buttons that unfold a run, pieces of text.
_ROWS = "document.querySelectorAll('.ag-center-cols-container .ag-row')"
_FOLDED = "document.querySelectorAll('.ag-row [role=button], .ag-row button')"
_SPANS = "[...document.querySelectorAll('span')]"


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


def shoot_runs(address: str, path: Path) -> None:
    """Take a picture of an experiment's runs, with the stages of each command unfolded."""
    with Browser(1360, 700) as page:
        page.open(address)
        page.wait(f"{_ROWS}.length > 0")
        _model_training(page)
        page.wait(f"{_FOLDED}.length > 0")
        page.run(f"[...{_FOLDED}].forEach(button => button.click())")
        page.wait(f"{_ROWS}.length > 5")
        time.sleep(_SETTLE_S)
        page.shoot(path)


def shoot_compared(address: str, path: Path) -> None:
    """Take a picture of the compare view."""
    with Browser(1600, 900) as page:
        page.open(address)
        page.wait("document.querySelector('.js-plotly-plot') !== null")
        _model_training(page)
        time.sleep(_SETTLE_S)
        page.shoot(path)


def reduce_colours(path: Path) -> None:
    """Keep 64 colours of a picture: a third of the bytes, and coarser colour scales."""
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(64)
    reduced.save(path, optimize=True)


def _model_training(page: Browser) -> None:
    """Switch the UI to model training, and close its assistant."""
    page.run(f"{_SPANS}.find(e => e.innerText === 'Model training').click()")
    page.run("document.querySelector('button[aria-label=\"Close\"]')?.click()")


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="keep the store here")
    given = parser.parse_args().folder
    if given is not None:
        make_pictures(given.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="tvmopt-screenshots-") as name:
        make_pictures(Path(name))


def make_pictures(folder: Path) -> None:
    """Make all pictures from runs in a store in ``folder``."""
    uri = make_runs(folder)
    client = mlflow.MlflowClient(uri)
    with ui(uri, folder) as address:
        example = _experiment(client, _EXAMPLE)
        shoot_runs(f"{address}/#/experiments/{example}/runs", FOLDER / "runs.png")
        search = _experiment(client, _SEARCH)
        shoot_compared(_compared(client, address, search), FOLDER / "search.png")
    for path in FOLDER.glob("*.png"):
        reduce_colours(path)


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

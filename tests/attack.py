"""Repeat the attacks of the security review on any checkout of this project.

``python -m tests.attack --project DIR --python DIR/.venv/bin/python`` prints a line for each
attack, and returns the number of those that succeeded. It uses command lines only, so that it
runs on every commit. SECURITY.md says what is held against each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from mlflow import MlflowClient
from onnx import helper

from tests.fuzz.seed import BOOL, INT64, floats, make_model, value

_node = helper.make_node
_PASSWORD = "open-sesame-7"


class Checkout:
    """A checkout with a store, a temporary folder and an environment of its own."""

    def __init__(self, project: Path, python: Path, folder: Path) -> None:
        self.folder, self._project, self._python = folder, project, python
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM"))}
        self.env = {
            **kept, "MLFLOW_TRACKING_URI": self.uri, "MLFLOW_DISABLE_TELEMETRY": "true",
            "TMPDIR": str(self.temporary),
        }  # fmt: skip
        self.has_limits = "stage_timeout" in (project / "MLproject").read_text()

    def start(self, entry: str, user: str = "", **parameters: object) -> subprocess.Popen[str]:
        """Start an entry point in a session of its own."""
        given = [word for name, v in parameters.items() for word in (f"--{name}", str(v))]
        env = {**self.env, "LOGNAME": user, "USER": user} if user else self.env
        if user:
            env["MLFLOW_EXPERIMENT_NAME"] = f"of {user}"
        return subprocess.Popen(
            [str(self._python), "-m", f"flows.{entry}", *given],
            cwd=self._project, env=env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, entry: str, user: str = "", seconds: float = 120, **parameters: object
    ) -> tuple[int | None, str]:
        """Run an entry point; return its exit code, or None if it was killed, and its output."""
        process = self.start(entry, user, **parameters)
        try:
            out, wrong = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill(process)
            return None, "".join(process.communicate())
        return process.returncode, out + wrong

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a command with all processes of its session."""
        os.killpg(process.pid, signal.SIGKILL)

    def python(self, script: str) -> str:
        """Run Python code; return what it prints."""
        done = subprocess.run(
            [str(self._python), "-c", script],
            cwd=self._project, env=self.env, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.strip()[-200:]

    def save(self, model: onnx.ModelProto, name: str = "model") -> Path:
        """Write a model; return its path."""
        path = self.folder / f"{name}.onnx"
        onnx.save_model(model, str(path))
        return path

    def registered(self, name: str) -> Path:
        """Return the folder of a model's first version."""
        client = MlflowClient(self.uri, self.uri)
        source = str(client.get_model_version(name, "1").source)
        if source.startswith("models:/"):
            source = client.get_logged_model(source.removeprefix("models:/")).artifact_location
        return Path(source.removeprefix("file://"))


def _network(name: str = "x") -> onnx.ModelProto:
    nodes = [
        _node("Conv", [name, "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        _node("Relu", ["c"], ["r"], name="relu"),
        _node("GlobalAveragePool", ["r"], ["y"], name="mean"),
    ]
    inputs, outputs = [value(name, [1, 3, 8, 8])], [value("y", [1, 4, 1, 1])]
    return make_model(nodes, inputs, outputs, {"w": floats(4, 3, 3, 3)})


def _registered(checkout: Checkout, name: str = "net", **more: object) -> tuple[int | None, str]:
    path = checkout.save(_network(), name)
    return checkout.run("main", model=path, name=name, strategy="default", threads=1, **more)


def code_in_a_name(checkout: Checkout) -> str:
    """An input's name ends the comment that it is written into, and is run by ``pull``."""
    mark = checkout.folder / "mark"
    path = checkout.save(_network(f"x\nopen({str(mark)!r}, 'w').close()\n#"))
    checkout.run("main", model=path, name="named", strategy="default", threads=1)
    checkout.run("pull", name="named", output=checkout.folder / "pulled")
    return "the code ran" if mark.exists() else ""


def escapes_in_a_name(checkout: Checkout) -> str:
    """The name of a node moves the cursor of the terminal."""
    node = _node("Det", ["x"], ["y"], name="\x1b[2Jdet")
    path = checkout.save(make_model([node], [value("x", [3, 4, 4])], [value("y", [3])]))
    _, said = checkout.run("convert", model=path)
    return "an escape sequence is printed" if "\x1b[2J" in said else ""


def nan_becomes_a_number(checkout: Checkout) -> str:
    """A champion answers NaN with numbers."""
    _registered(checkout)
    found = checkout.python(
        "import mlflow.pyfunc, numpy as np\n"
        "y = mlflow.pyfunc.load_model('models:/net/1').predict(np.full((1,3,8,8), np.nan, 'f'))\n"
        "print('answers', np.isfinite(y).sum())"
    )
    return "" if found.endswith("answers 0") else found


def exchanged_tolerance(checkout: Checkout) -> str:
    """The tolerance of the golden check is raised in the store."""
    _registered(checkout)
    path = checkout.registered("net") / "compiled" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tolerance": 1e9}))
    code, _ = checkout.run("pull", name="net", version=1, output=checkout.folder / "pulled")
    return "pulled" if code == 0 else ""


def exchanged_code(checkout: Checkout) -> str:
    """A file of the code that a model carries is exchanged in the store."""
    _registered(checkout)
    path = checkout.registered("net") / "code" / "tvmopt" / "versions.py"
    path.write_text(path.read_text() + "\nprint('exchanged')\n")
    code, _ = checkout.run("pull", name="net", version=1, output=checkout.folder / "pulled")
    return "pulled" if code == 0 else ""


def foreign_library(checkout: Checkout) -> str:
    """The stages of another user's run, in another experiment, are taken for one's own."""
    _registered(checkout, user="mallory")
    _, said = _registered(checkout, user="alice")
    return "reused" if "reused" in said else ""


def password_in_a_run(checkout: Checkout) -> str:
    """A password in the URL of a study's storage is kept by MLflow, or printed."""
    url = f"postgresql://optuna:{_PASSWORD}@127.0.0.1:9/studies"
    path = checkout.save(_network())
    _, said = checkout.run("search", seconds=90, model=path, name="s", storage=url, trials=1)
    kept = any(
        _PASSWORD.encode() in path.read_bytes()
        for path in checkout.folder.rglob("*")
        if path.is_file()
    )
    return "printed" if _PASSWORD in said else "kept in the store" if kept else ""


def endless_loop(checkout: Checkout) -> str:
    """A Loop that never ends keeps the conversion for ever."""
    body = helper.make_graph(
        [
            _node("Identity", ["on"], ["still"], name="still"),
            _node("Add", ["state", "x"], ["next"], name="next"),
        ],
        "body",
        [value("i", [], INT64), value("on", [], BOOL), value("state", [2])],
        [value("still", [], BOOL), value("next", [2])],
    )
    node = _node("Loop", ["", "go", "x"], ["y"], name="loop", body=body)
    model = make_model([node], [value("x", [2])], [value("y", [2])], {"go": np.array(True)})
    limit = {"stage_timeout": 15} if checkout.has_limits else {}
    code, _ = checkout.run("main", seconds=60, model=checkout.save(model), name="loop", **limit)
    return "still running after 60 s" if code is None else ""


def ended_by_a_signal(checkout: Checkout) -> str:
    """SIGTERM leaves a run that says RUNNING."""
    path = checkout.save(_network())
    process = checkout.start("main", model=path, name="net", threads=1)
    time.sleep(6)
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        checkout.kill(process)
    return _running(checkout)


def _running(checkout: Checkout) -> str:
    client = MlflowClient(checkout.uri, checkout.uri)
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, "attributes.status = 'RUNNING'")
    return f"{len(runs)} runs are RUNNING" if runs else ""


def folders_of_the_killed(checkout: Checkout) -> str:
    """Commands killed by SIGKILL leave folders that no later command removes."""
    path = checkout.save(_network())
    for seconds in (4, 6, 8):
        process = checkout.start("main", model=path, name="net", threads=1, no_cache="true")
        time.sleep(seconds)
        checkout.kill(process)
        process.communicate()
    checkout.run("convert", model=path)
    left = [path.name for path in checkout.temporary.iterdir() if path.name.startswith("tvmopt")]
    return f"{len(left)} folders" if left else ""


def two_first_commands(checkout: Checkout) -> str:
    """Two commands that begin a store at once ruin each other's."""
    path = checkout.save(_network())
    for _ in range(4):
        (checkout.folder / "mlflow.db").unlink(missing_ok=True)
        both = [checkout.start("convert", model=path) for _ in range(2)]
        said = [process.communicate(timeout=120) for process in both]
        if any(process.returncode for process in both):
            return "one failed: " + " ".join(said[0][1].split() + said[1][1].split())[-80:]
    return ""


def _is_unclear(code: int | None, said: str) -> str:
    if code is None:
        return "hangs"
    if code < 0:
        return f"dies of signal {-code}"
    return "a traceback" if "Traceback" in said else ""


def fifo_as_model(checkout: Checkout) -> str:
    """A model that is a fifo is waited for."""
    os.mkfifo(checkout.folder / "pipe.onnx")
    return _is_unclear(*checkout.run("convert", seconds=30, model=checkout.folder / "pipe.onnx"))


def huge_dimension(checkout: Checkout) -> str:
    """A dimension of 10^20."""
    path = checkout.save(_network())
    return _is_unclear(
        *checkout.run("convert", seconds=60, model=path, input_shapes=f"x:1x3x8x{10**20}")
    )


def loop_of_links(checkout: Checkout) -> str:
    """A model that is a loop of symbolic links."""
    path = checkout.folder / "loop.onnx"
    path.symlink_to(path)
    return _is_unclear(*checkout.run("convert", seconds=30, model=path))


def damaged_data(checkout: Checkout) -> str:
    """Evaluation data whose headers lie."""
    path, model = checkout.folder / "data.npz", checkout.save(_network())
    found = ""
    np.savez(path, x=np.zeros((2, 3, 8, 8), np.float32))
    whole = path.read_bytes()
    for damaged in (
        whole[:200], whole.replace(b"(2, 3, 8, 8)", b"(2, 3, 8, 9)"),
        whole.replace(b"'<f4'", b"'|O' "), whole.replace(b"x.npy", b"\xff.npy"), b"PK\x03\x04",
    ):  # fmt: skip
        path.write_bytes(damaged)
        found = found or _is_unclear(
            *checkout.run("main", model=model, name="net", data=path, strategy="default")
        )
    return found


def absurd_threads(checkout: Checkout) -> str:
    """A thread count of 999,999,999."""
    path = checkout.save(_network())
    return _is_unclear(
        *checkout.run("main", model=path, name="net", threads=999_999_999, strategy="default")
    )


def alias_bomb(checkout: Checkout) -> str:
    """A YAML file of nested aliases."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    space, path = checkout.folder / "space.yaml", checkout.save(_network())
    space.write_text("\n".join(lines))
    return _is_unclear(
        *checkout.run("search", seconds=60, model=path, name="s", space=space, trials=1)
    )


def _said_by_calls(checkout: Checkout, model: onnx.ModelProto, script: str) -> str:
    """Register a model; return what a script prints that calls it by the name ``model``."""
    path = checkout.save(model)
    checkout.run("main", model=path, name="net", strategy="default", threads=1)
    return checkout.python(
        "import mlflow.pyfunc, numpy as np\n"
        "model = mlflow.pyfunc.load_model('models:/net/1')\n" + script
    )


def index_out_of_range(checkout: Checkout) -> str:
    """An index in a call reads the memory of the process, or ends it."""
    node = _node("GatherND", ["t", "i"], ["y"], name="gather")
    model = make_model(
        [node], [value("i", [2, 1], INT64)], [value("y", [2, 5])], {"t": floats(4, 5)}
    )
    found = _said_by_calls(
        checkout,
        model,
        "y = model.predict(np.array([[4], [9]]))\n"
        "print('reads', np.isfinite(y).sum(), flush=True)\n"
        "model.predict(np.full((2, 1), 2**40))\n"
        "print('lives')",
    )
    return "" if found == "reads 0\nlives" else found


def division_by_zero(checkout: Checkout) -> str:
    """A call that divides integers by zero ends the process."""
    node = _node("Div", ["a", "b"], ["y"], name="div")
    inputs = [value("a", [4], INT64), value("b", [4], INT64)]
    found = _said_by_calls(
        checkout,
        make_model([node], inputs, [value("y", [4], INT64)]),
        "print('loaded', flush=True)\n"
        "model.predict({'a': np.ones(4, 'int64'), 'b': np.zeros(4, 'int64')})\n"
        "print('lives')",
    )
    return "" if found == "loaded\nlives" else f"the process died after {found!r}"


ATTACKS: tuple[Callable[[Checkout], str], ...] = (
    code_in_a_name, escapes_in_a_name, nan_becomes_a_number, exchanged_tolerance, exchanged_code,
    foreign_library, password_in_a_run, endless_loop, ended_by_a_signal, folders_of_the_killed,
    two_first_commands, fifo_as_model, huge_dimension, loop_of_links, damaged_data, absurd_threads,
    alias_bomb, index_out_of_range, division_by_zero,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each attack; return how many succeeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--project", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("names", nargs="*", help="attacks to try; all without")
    given = parser.parse_args(arguments)
    succeeded = 0
    for attack in ATTACKS:
        if given.names and attack.__name__ not in given.names:
            continue
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
            evidence = attack(Checkout(given.project.resolve(), given.python, Path(folder)))
        succeeded += bool(evidence)
        print(
            f"{attack.__name__:22} {'SUCCEEDED: ' + evidence if evidence else 'held'}", flush=True
        )
    return succeeded


if __name__ == "__main__":
    sys.exit(main())

"""A checkout of this project that is attacked, by its command lines only."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from mlflow import MlflowClient


class Checkout:
    """A checkout with a store, a temporary folder and an environment that only it uses."""

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
        """Start an entry point in a new session."""
        given = [word for name, v in parameters.items() for word in (f"--{name}", str(v))]
        env = {**self.env, "LOGNAME": user, "USER": user} if user else self.env
        if user:
            env["MLFLOW_EXPERIMENT_NAME"] = f"of {user}"
        return self._start([f"flows.{entry}", *given], env)

    def start_by_mlflow(self, entry: str, **parameters: object) -> subprocess.Popen[str]:
        """Start an entry point by ``mlflow run``, in a new session."""
        given = [word for name, v in parameters.items() for word in ("-P", f"{name}={v}")]
        words = ["mlflow", "run", ".", "--env-manager", "local", "-e", entry, *given]
        path = f"{self._python.parent}{os.pathsep}{os.environ['PATH']}"
        return self._start(words, {**self.env, "PATH": path})

    def _start(self, module: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._python), "-m", *module],
            cwd=self._project, env=env, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, entry: str, user: str = "", seconds: float = 300, **parameters: object
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

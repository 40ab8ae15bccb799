"""Run entry points in forks of a process that has imported them, as ``python -m flows.ENTRY`` does.

Importing MLflow, TVM and the package takes four to eight CPU seconds in every command; here it does
so once. The fork server of a command's stages is a fork, too; see ``tests.stage_servers``. What
differs from a new process: modules are imported already. The start of a process is tested by
commands that run through ``mlflow run`` and ``python -m``.

``python -m tests.commands`` reads one JSON object a line: the arguments, environment and folder of
a command, and files for its output. It answers with the exit code, one a line.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests import stage_servers

ROOT = Path(__file__).parents[1]


class CommandServer:
    """Client of the process; one command at a time.

    Args:
        folder: Folder of a log and of the output of commands.
        env: Environment of the process. Commands have other environments, but what is read when a
            module is imported comes from here.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        with (folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.commands"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=dict(env), cwd=ROOT, text=True,
            )  # fmt: skip

    def run(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> subprocess.CompletedProcess:
        """Run ``python -m WORDS`` and return its exit code, output and errors as text."""
        files = {name: str(self._folder / name) for name in ("stdout", "stderr")}
        asked = {"words": [*words], "env": dict(env), "cwd": str(cwd), **files}
        if hasattr(os, "sched_getaffinity"):  # a new process inherits it
            asked["cores"] = sorted(os.sched_getaffinity(0))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "server.log").read_text()
        said = {name: Path(path).read_text() for name, path in files.items()}
        return subprocess.CompletedProcess(list(words), json.loads(answer), **said)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _command(asked: dict[str, Any]) -> NoReturn:
    """Run a command in this forked process."""
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        tempfile.tempdir = None  # of the server's environment
        if "cores" in asked:
            os.sched_setaffinity(0, asked["cores"])
        module, *sys.argv[1:] = asked["words"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """End this process after its exit handlers, which close the server of the stages."""
    try:
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve commands until the client closes the pipe."""
    stage_servers.begin()  # before a module starts a thread
    import tvmopt.workflow  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _command(json.loads(line))
        _, status = os.waitpid(pid, 0)
        answers.write(json.dumps(os.waitstatus_to_exitcode(status)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

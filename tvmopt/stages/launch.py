"""Run a stage in a child process; return its result, or raise its error."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt import errors, host
from tvmopt.errors import LimitError, StageFailedError, TvmoptError, last_line
from tvmopt.scratch import scratch_folder
from tvmopt.stages.child import ERROR_FILE, PROGRESS_MARK, RESULT_FILE
from tvmopt.stages.process import StageProcess, stage_process
from tvmopt.stages.result import Progress, StageResult
from tvmopt.stages.watch import Allowance, Watch

_LOG_TAIL = 5
# TVM's handler of SIGSEGV prints this and the native stack, whose end is always Python's start.
_BACKTRACE = "!!!!!!! Segfault encountered"
UNLIMITED = Allowance()
#: Environment variables that hold secrets which no stage needs.
SECRETS = (
    "TVMOPT_STORAGE", "TVMOPT_CACHE_KEY", "PGPASSWORD", "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCESS_KEY",
)  # fmt: skip


def launch(
    stage: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, Path],
    out_dir: Path,
    log: Path,
    progress: Progress,
    *,
    threads: int,
    digest: str = "",
    allowance: Allowance = UNLIMITED,
    in_run: bool = True,
) -> StageResult:
    """Run one stage in a child process.

    The temporary files of the child lie in a folder that is removed when the child has ended,
    however it ended.

    Args:
        stage: Name of the stage; see :func:`tvmopt.stages.child.run_stage`.
        config: ``to_dict()`` of the stage's configuration.
        inputs: Files and folders it reads, by role.
        out_dir: Empty folder for its files.
        log: File that gets everything the child prints.
        progress: Called as the child reports.
        threads: Threads of TVM's pool in the child.
        digest: Digest of the stage, written into what it builds.
        allowance: What the child and its own children may use.
        in_run: Whether the caller logs ``log`` to a run, to which messages may then refer.

    Raises:
        TvmoptError: What the stage raised, with its class and message.
        LimitError: When the child was stopped for passing its allowance.
        StageFailedError: When the child crashed or was killed; names the signal and the log.
    """
    with scratch_folder() as control:
        request = {
            "stage": stage,
            "config": dict(config),
            "inputs": {name: str(path) for name, path in inputs.items()},
            "out_dir": str(out_dir),
            "digest": digest,
        }
        with stage_process(request, control / "request.json", _environment(control, threads)) as it:
            code = _watched(it, stage, log, progress, allowance)
        if (control / ERROR_FILE).exists():
            raise _rebuilt(json.loads((control / ERROR_FILE).read_text()), stage, in_run)
        if code != 0 or not (control / RESULT_FILE).exists():
            raise StageFailedError(*_crash(stage, code, log))
        return StageResult.read(control / RESULT_FILE)


def _environment(control: Path, threads: int) -> dict[str, str]:
    # A worker that saw the run would resume, rename and finish it itself; secrets are not for it.
    unwanted = {"MLFLOW_RUN_ID", *SECRETS}
    return {
        **{name: value for name, value in os.environ.items() if name not in unwanted},
        "TMPDIR": str(control),
        **host.thread_environment(threads),
        "PYTHONUNBUFFERED": "1",
        # The package may run from a source tree that is not installed.
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
        ),
    }


def _watched(
    process: StageProcess, stage: str, log: Path, progress: Progress, allowance: Allowance
) -> int:
    """Write what the process prints to ``log``; return its exit code."""
    with Watch(process.pid, allowance) as watch, log.open("a") as file:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(PROGRESS_MARK):
                progress(*json.loads(line.removeprefix(PROGRESS_MARK)))
            else:
                file.write(line)
                file.flush()
        code = process.wait()
    watch.check(f"the {stage} process")
    return code


def _rebuilt(data: dict[str, Any], stage: str, in_run: bool) -> TvmoptError:
    if data["known"]:
        kind = getattr(errors, data["type"], None)
        if isinstance(kind, type) and issubclass(kind, TvmoptError):
            if issubclass(kind, StageFailedError | LimitError):
                return kind(data["message"], data["class"])
            return kind(data["message"])
    more = "; the log of the run has the details" if in_run else ""
    what = last_line(data["message"])
    return StageFailedError(f"{stage} failed with an unexpected error: {what}{more}", data["class"])


def _crash(stage: str, code: int, log: Path) -> tuple[str, str]:
    if code < 0:
        known = {s.value: s.name for s in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        what, kind = f"was ended by {name}", "killed" if name == "SIGKILL" else "crash"
    else:
        what, kind = f"ended with exit code {code} and no result", "crash"
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = text.partition(_BACKTRACE)[0].splitlines()[-_LOG_TAIL:]
    tail = f"; last lines of its log: {' | '.join(lines)[:400]}" if lines else ""
    return f"the {stage} process {what}{tail}", kind

"""Run one stage in this process and leave its result, or its error, as a file.

Run by :mod:`tvmopt.stages.launch` as ``python -m tvmopt.stages.child REQUEST.json``. A compiler
can crash, hang or eat memory; in a process of its own it takes nothing else along.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tvmopt.errors import LimitError, TvmoptError, in_one_line
from tvmopt.stages.result import Progress, StageResult

RESULT_FILE = "result.json"
ERROR_FILE = "error.json"
PROGRESS_MARK = "\x1eprogress "
_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


def _report(done: int, total: int, text: str) -> None:
    print(f"{PROGRESS_MARK}{json.dumps([done, total, text])}", flush=True)


def run_stage(request: dict[str, Any], out_dir: Path, progress: Progress) -> StageResult:
    """Run the stage that ``request`` names; see :func:`tvmopt.stages.launch.launch`."""
    from tvmopt import config as configs

    stage = request["stage"]
    inputs = {name: Path(path) for name, path in request["inputs"].items()}
    if stage == "calibrate":
        from tvmopt.stages.calibrate import calibrate

        return calibrate(
            configs.CalibrateConfig.from_dict(request["config"]),
            inputs["model"],
            out_dir,
            progress,
            inputs.get("data"),
        )
    if stage == "sensitivity":
        from tvmopt.stages.sensitivity import sensitivity

        return sensitivity(
            configs.SensitivityConfig.from_dict(request["config"]),
            inputs["model"],
            out_dir,
            progress,
            inputs.get("data"),
            inputs.get("calibrate"),
        )
    if stage == "convert":
        from tvmopt.stages.convert import convert

        return convert(
            configs.ConvertConfig.from_dict(request["config"]),
            inputs["model"],
            out_dir,
            progress,
            inputs.get("data"),
            inputs.get("calibrate"),
            inputs.get("sensitivity"),
        )
    if stage == "tune":
        from tvmopt.stages.tune import tune

        return tune(
            configs.TuneConfig.from_dict(request["config"]),
            inputs["convert"],
            out_dir,
            progress,
            inputs.get("warm_start"),
            [path for name, path in inputs.items() if name.startswith("earlier:")],
        )
    if stage == "build":
        from tvmopt.stages.build import build

        return build(
            configs.BuildConfig.from_dict(request["config"]),
            inputs["convert"],
            inputs.get("tune"),
            request["digest"],
            out_dir,
            progress,
        )
    if stage == "evaluate":
        from tvmopt.stages.evaluate import evaluate

        bundles = {
            name.removeprefix("bundle:"): path
            for name, path in inputs.items()
            if name.startswith("bundle:")
        }
        return evaluate(
            configs.EvaluateConfig.from_dict(request["config"]),
            inputs["convert"],
            bundles,
            out_dir,
            progress,
            inputs.get("data"),
        )
    raise ValueError(f"stage must be the name of one, but got {stage!r}")


def main(path: str) -> int:
    """Serve the request at ``path``; returns the exit code."""
    request = json.loads(Path(path).read_text())
    _die_with_parent(request["parent"])
    control = Path(path).parent
    try:
        result = run_stage(request, Path(request["out_dir"]), _report)
    except Exception as raised:
        traceback.print_exc()
        error: Exception = raised
        if isinstance(raised, MemoryError):
            error = LimitError(
                f"the {request['stage']} process needs more memory than there is: "
                f"{in_one_line(raised)}; give it more, or a smaller model",
                "out_of_memory",
            )
        known = isinstance(error, TvmoptError)
        data = {
            "class": error.failure_class if isinstance(error, TvmoptError) else "crash",
            "type": type(error).__name__,
            "message": str(error) if known else f"{type(error).__name__}: {error}",
            "known": known,
        }
        (control / ERROR_FILE).write_text(json.dumps(data))
        return 1
    result.write(control / RESULT_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

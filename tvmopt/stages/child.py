"""Run one stage in this process, and write its result or error to a file.

Run by :mod:`tvmopt.stages.launch` as ``python -m tvmopt.stages.child REQUEST.json``. A compiler
can crash, hang or eat memory; in a process of its own it takes nothing else along.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmopt import config as configs
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


@dataclasses.dataclass(frozen=True)
class _Asked:
    config: dict[str, Any]
    inputs: dict[str, Path]
    digest: str
    out_dir: Path
    progress: Progress

    def named(self, prefix: str) -> dict[str, Path]:
        """Return the inputs whose role starts with ``prefix``, by the rest of the role."""
        found = self.inputs.items()
        return {role.removeprefix(prefix): p for role, p in found if role.startswith(prefix)}


def _prepare(asked: _Asked) -> StageResult:
    from tvmopt.stages.layers import write_layers

    return write_layers(asked.config["input_shapes"], asked.inputs["model"], asked.out_dir)


def _golden(asked: _Asked) -> StageResult:
    from tvmopt.stages.heldout import check_golden

    return check_golden(asked.inputs["bundle"], asked.config["metadata_sha256"])


def _heldout(asked: _Asked) -> StageResult:
    from tvmopt.remote import Board
    from tvmopt.stages.heldout import measure_heldout

    board = asked.config["board"]
    return measure_heldout(
        asked.inputs["bundle"],
        asked.config["metadata_sha256"],
        asked.inputs["convert"],
        asked.inputs.get("data"),
        asked.out_dir,
        None if board is None else Board(**board),
    )


def _calibrate(asked: _Asked) -> StageResult:
    from tvmopt.stages.calibrate import calibrate

    config = configs.CalibrateConfig.from_dict(asked.config)
    inputs = asked.inputs
    return calibrate(config, inputs["model"], asked.out_dir, asked.progress, inputs.get("data"))


def _sensitivity(asked: _Asked) -> StageResult:
    from tvmopt.stages.sensitivity import sensitivity

    return sensitivity(
        configs.SensitivityConfig.from_dict(asked.config),
        asked.inputs["model"],
        asked.out_dir,
        asked.progress,
        asked.inputs.get("data"),
        asked.inputs.get("calibrate"),
    )


def _convert(asked: _Asked) -> StageResult:
    from tvmopt.stages.convert import convert

    return convert(
        configs.ConvertConfig.from_dict(asked.config),
        asked.inputs["model"],
        asked.out_dir,
        asked.progress,
        asked.inputs.get("data"),
        asked.inputs.get("calibrate"),
        asked.inputs.get("sensitivity"),
    )


def _tune(asked: _Asked) -> StageResult:
    from tvmopt.stages.tune import tune

    return tune(
        configs.TuneConfig.from_dict(asked.config),
        asked.inputs["convert"],
        asked.out_dir,
        asked.progress,
        asked.inputs.get("warm_start"),
        list(asked.named("earlier:").values()),
    )


def _build(asked: _Asked) -> StageResult:
    from tvmopt.stages.build import build

    return build(
        configs.BuildConfig.from_dict(asked.config),
        asked.inputs["convert"],
        asked.inputs.get("tune"),
        asked.digest,
        asked.out_dir,
        asked.progress,
    )


def _evaluate(asked: _Asked) -> StageResult:
    from tvmopt.stages.evaluate import evaluate

    return evaluate(
        configs.EvaluateConfig.from_dict(asked.config),
        asked.inputs["convert"],
        asked.named("bundle:"),
        asked.out_dir,
        asked.progress,
        asked.inputs.get("data"),
    )


_STAGES: dict[str, Callable[[_Asked], StageResult]] = {
    "prepare": _prepare,
    "calibrate": _calibrate,
    "sensitivity": _sensitivity,
    "convert": _convert,
    "tune": _tune,
    "build": _build,
    "evaluate": _evaluate,
    "golden": _golden,
    "heldout": _heldout,
}


def run_stage(request: dict[str, Any], out_dir: Path, progress: Progress) -> StageResult:
    """Run the stage that ``request`` names; see :func:`tvmopt.stages.launch.launch`."""
    stage = request["stage"]
    if stage not in _STAGES:
        raise ValueError(f"stage must be the name of one, but got {stage!r}")
    inputs = {name: Path(path) for name, path in request["inputs"].items()}
    asked = _Asked(request["config"], inputs, request["digest"], out_dir, progress)
    return _STAGES[stage](asked)


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
            "message": str(error) if known else f"{type(error).__name__}: {error}".rstrip(": "),
            "known": known,
        }
        (control / ERROR_FILE).write_text(json.dumps(data))
        return 1
    result.write(control / RESULT_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

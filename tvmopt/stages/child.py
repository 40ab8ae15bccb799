"""Run one stage in this process, and write its result or error to a file.

Run by :mod:`tvmopt.stages.launch` as ``python -m tvmopt.stages.child REQUEST.json``. A compiler
can crash, hang or eat memory; in a separate process it takes nothing else along.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tvmopt import forked
from tvmopt.device.gpu_memory import is_out_of_gpu_memory
from tvmopt.errors import LimitError, TvmoptError, in_one_line
from tvmopt.process import die_with_parent
from tvmopt.stages.registry import STAGES, StageCall
from tvmopt.stages.result import Progress, StageResult

RESULT_FILE = "result.json"
ERROR_FILE = "error.json"
PROGRESS_MARK = "\x1eprogress "


def _report(done: int, total: int, text: str) -> None:
    print(f"{PROGRESS_MARK}{json.dumps([done, total, text])}", flush=True)


def run_stage(request: dict[str, Any], out_dir: Path, progress: Progress) -> StageResult:
    """Run the stage that ``request`` names; see :func:`tvmopt.stages.launch.launch`."""
    name = request["stage"]
    if name not in STAGES:
        raise ValueError(f"stage must be the name of one, but got {name!r}")
    inputs = {role: Path(path) for role, path in request["inputs"].items()}
    call = StageCall(request["config"], inputs, request["digest"], out_dir, progress)
    return STAGES[name].run(call)


def main(path: str) -> int:
    """Serve the request at ``path``; returns the exit code."""
    request = json.loads(Path(path).read_text())
    die_with_parent(request["parent"])
    forked.allow()
    control = Path(path).parent
    try:
        result = run_stage(request, Path(request["out_dir"]), _report)
    except Exception as raised:  # the child's boundary: the parent reports it
        traceback.print_exc()
        error: Exception = raised
        if isinstance(raised, MemoryError):
            error = LimitError(
                f"the {request['stage']} process needs more memory than there is: "
                f"{in_one_line(raised)}; give it more, or a smaller model",
                "out_of_memory",
            )
        elif is_out_of_gpu_memory(raised):
            error = LimitError(
                f"{request['stage']} must fit into the memory of this machine's GPU, but does "
                "not: CUDA is out of memory; end other programs on the GPU, give smaller "
                "input_shapes, or a dtype with fewer bits",
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

"""Worker process of :mod:`tvmopt.measure.workers`: read a job, call it, answer, repeat.

Started as ``python -m tvmopt.measure.worker``. The answer pipe is duplicated from standard output
first, because LLVM and candidates may print.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from typing import IO

from tvmopt import host
from tvmopt.device.tvm_import import import_tvm_without_torch
from tvmopt.errors import last_line


def main() -> None:
    """Serve jobs until the parent closes the pipe or dies."""
    # Ctrl-C reaches the whole process group; the parent decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()

    import_tvm_without_torch()  # before the first job, whose time must not include it

    # AMX needs permission from the kernel; without it, candidates that use AMX crash.
    host.request_amx(host.cpu_flags())

    _write(answers, json.dumps({"value": "ready"}))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            module, _, name = request["function"].partition(":")
            value = getattr(importlib.import_module(module), name)(**request["arguments"])
            answer = json.dumps({"value": value})
        except Exception as error:  # a candidate's failure is an answer, not the end of the worker
            answer = json.dumps({"error": one_line(error)})
        _write(answers, answer)


def one_line(error: Exception) -> str:
    """Return class and last line of an error."""
    name, said = type(error).__name__, last_line(error)
    return name if said == name else f"{name}: {said}"[:300]


def _write(pipe: IO[str], line: str) -> None:
    pipe.write(line + "\n")
    pipe.flush()


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent dies: a killed parent does not end a running job."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()

"""Run work in a forked child, so that a crash, hang or memory bomb ends only the child."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from tests.fuzz.outcome import CRASH, GOOD, LIMIT, PARENT, Outcome

#: Limits of one mutant, like ``stage_timeout`` and ``memory_limit``. CPU seconds do not depend on
#: the load of the machine; the wall-time limit ends a mutant that waits without using CPU.
CPU_SECONDS, SECONDS, MEGABYTES = 15.0, 240.0, 2500.0
#: Phases that run in the process of the command; a crash there ends the command.
_OF_THE_PARENT = ("", "request")
_ADDRESS_SPACE = 24 << 30
_LOOK_S = 0.01
_IMPORTS = (
    "onnxruntime", "tvm.relax.frontend.onnx", "tvm.s_tir.meta_schedule", "tvmopt.runtime",
    "tvmopt.stages.build", "tvmopt.stages.convert", "tvmopt.stages.tune",
    "tvmopt.tracking.pipeline.request", "tvmopt.tune",
    "tvmopt.tune.convergence", "tvmopt.tune.regret", "tvmopt.tune.report",
    "tvm.relax.backend.cpu_generic.pipeline",
)  # fmt: skip

Phase = Callable[[str], None]


def import_all() -> None:
    """Import the modules of the children; it must not start threads."""
    for name in _IMPORTS:
        importlib.import_module(name)
    from tvmopt.codegen.native_objects import write_objects
    from tvmopt.device.target import resolve_target
    from tvmopt.link import compile_command
    from tvmopt.scratch import scratch_folder

    resolve_target("host", 1).to_tvm()
    with scratch_folder() as folder:
        write_objects(compile_command(), folder)  # kept for the children


def in_child(
    folder: Path, work: Callable[[Phase], Outcome], seconds: float = SECONDS
) -> tuple[Outcome, float]:
    """Run ``work`` in a child; return its outcome and its CPU seconds.

    Args:
        folder: Folder for ``log``, the output of the child, and ``phase``, its last phase.
        work: Function to call; its argument is a function that records the name of a phase.
        seconds: Wall-time limit; a value other than the default removes the CPU limit.
    """
    pid = os.fork()
    if not pid:
        _child(folder, work)
    start = time.monotonic()
    stopped = ""
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        cpu_s, memory_mb = _used(pid)
        if time.monotonic() - start > seconds:
            stopped = f"it had not ended after {seconds:.0f} s"
        elif cpu_s > CPU_SECONDS and seconds == SECONDS:
            stopped = f"it had not ended after {CPU_SECONDS:.0f} s of CPU"
        elif memory_mb > MEGABYTES:
            stopped = f"it used {memory_mb:.0f} MB of memory"
        if stopped:
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(_LOOK_S)
    phase = read(folder / "phase")
    cpu_s = usage.ru_utime + usage.ru_stime
    of_the_parent = phase in _OF_THE_PARENT
    if stopped:
        return Outcome(PARENT if of_the_parent else LIMIT, phase, stopped), cpu_s
    if result := read(folder / "result"):
        return Outcome(**json.loads(result)), cpu_s
    code = os.waitstatus_to_exitcode(status)
    text = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    log = read(folder / "log")[-1500:]
    return Outcome(PARENT if of_the_parent else CRASH, phase, text, details=log), cpu_s


def _child(folder: Path, work: Callable[[Phase], Outcome]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)

        def phase(name: str) -> None:
            (folder / "phase").write_text(name)

        text = json.dumps(dataclasses.asdict(work(phase)))
        (folder / "partial").write_text(text)
        (folder / "partial").rename(folder / "result")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _used(pid: int) -> tuple[float, float]:
    """Return CPU seconds and resident megabytes of a process."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 1e6
    except psutil.Error:
        return 0.0, 0.0


def read(path: Path) -> str:
    """Return the text of a file; empty when there is none."""
    return path.read_text(errors="replace") if path.exists() else ""


def report(found: Iterable[dict[str, Any]]) -> int:
    """Print each outcome as a JSON line, then a table; return exit code 1 for a bad outcome."""
    records = []
    for record in found:
        print(json.dumps(record), flush=True)
        records.append(record)
    print(_table(records), file=sys.stderr)
    return int(any(r["kind"] not in GOOD for r in records))


def _table(records: list[dict[str, Any]]) -> str:
    """Return counts of outcomes by phase, and their times."""
    counts = collections.Counter((r["kind"], r["phase"]) for r in records)
    lines = [f"{kind:10} {phase:8} {n:6}" for (kind, phase), n in sorted(counts.items())]
    cpu, wall = (sum(r[key] for r in records) for key in ("cpu_s", "wall_s"))
    lines.append(f"{len(records)} mutants, {cpu:.0f} s of CPU, {wall:.0f} s")
    return "\n".join(lines)

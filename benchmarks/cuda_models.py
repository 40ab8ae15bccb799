"""Compare latency of networks on a CUDA GPU: TVM with dlight, tvmopt, PyTorch, torch.compile.

Usage: ``python -m benchmarks.cuda_models [--only NAMES] [--contenders NAMES] [--topk K]
[--json FILE] [--out FILE.md]``

Each network has two worker processes, one of them for ``torch.compile``. All workers compile in
parallel, which takes minutes. The script then tunes and times one network at a time; nothing else
uses the GPU. Contenders are timed in interleaved rounds, slow ones separately. The reference is
PyTorch in float32. The exit code is 1 when tvmopt has no latency or a wrong result. The script
needs TVM and PyTorch, but neither ONNX nor MLflow.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_timing import time_interleaved
from benchmarks.report import markdown
from tvmopt.device.cuda import probe
from tvmopt.errors import TvmoptError
from tvmopt.versions import TVM_VERSION

#: TVM with dlight; tvmopt with top-1 and with tuned configurations; PyTorch; torch.compile.
CONTENDERS = ("dlight", "top-1", "tuned", "eager", "compiled")
_OURS = ("top-1", "tuned")
_TOLERANCE = {"float32": 1e-3, "float16": 3e-2}
# Timeout of one step of a worker, in seconds.
_LIMITS = {"prepare": 300.0, "tune": 240.0, "check": 60.0, "once": 20.0}


class Worker:
    """A process that runs some contenders of a network.

    The protocol is one line of text per request and one line of JSON per reply.

    Args:
        name: Name of the network.
        topk: Configurations to measure per function.
        only: Contenders that the process runs.
    """

    def __init__(self, name: str, topk: int, only: Sequence[str]) -> None:
        self.name, self.only = name, list(only)
        command = [
            sys.executable, "-m", "benchmarks.cuda_models_worker", name, str(topk), ",".join(only)
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, step: str) -> dict[str, Any]:
        """Run ``step``; return the reply, or ``{"problem": ...}`` if the process ends or hangs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        seconds = _LIMITS[step.partition(" ")[0]]
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(step + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        except OSError as error:
            return {"problem": f"{step}: {error}"}
        finally:
            timer.cancel()
        return {"problem": f"{step}: ended, or took more than {seconds:.0f} s"}

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


class NetworkRun:
    """One network: its worker processes and its results.

    Args:
        name: Name of the network.
        topk: Configurations to measure per function.
        only: Contenders to run.
    """

    def __init__(self, name: str, topk: int, only: Sequence[str]) -> None:
        self.found: dict[str, Any] = {"name": name, "errors": {}, "ms": {}, "problems": {}}
        parts = [[c for c in only if c != "compiled"], [c for c in only if c == "compiled"]]
        self._workers = [Worker(name, topk, part) for part in parts if part]

    def all(self, step: str) -> None:
        """Run ``step`` in every process in parallel."""
        threads = [threading.Thread(target=self._one, args=(w, step)) for w in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def time(self) -> None:
        """Check all contenders, then time them interleaved."""
        for worker in list(self._workers):
            self._one(worker, "check")
        timers = {
            name: functools.partial(_once, worker, name)
            for worker in self._workers
            for name in worker.only
            if name in self.found["errors"]
        }
        rounds = time_interleaved(timers)
        for name, spent in rounds.items():
            spent = [ms for ms in spent if math.isfinite(ms)]
            if spent:
                self.found["ms"][name] = statistics.median(spent)
                self.found.setdefault("spread", {})[name] = [min(spent), max(spent)]

    def _one(self, worker: Worker, step: str) -> None:
        reply = worker.ask(step)
        if "problem" in reply:
            for name in worker.only:
                self.found["problems"].setdefault(name, reply["problem"])
            self._workers.remove(worker)
            worker.close()
        for key, value in reply.items():
            if isinstance(value, dict):
                self.found.setdefault(key, {}).update(value)
            else:
                self.found[key] = value

    def close(self) -> None:
        """Kill the worker processes."""
        for worker in self._workers:
            worker.close()


def _once(worker: Worker, contender: str) -> float:
    """Milliseconds per call in one round; infinite when the worker does not reply."""
    return float(worker.ask(f"once {contender}").get("ms", math.inf))


def measure(names: Sequence[str], topk: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """Measure networks; return one row per network, in order."""
    start = time.perf_counter()

    def log(text: str) -> None:
        print(f"{time.perf_counter() - start:.0f} s {text}", file=sys.stderr, flush=True)

    runs = [NetworkRun(name, topk, only) for name in names]
    threads = [threading.Thread(target=run.all, args=("prepare",)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log("prepared")
    for run in runs:
        if topk:
            run.all("tune")
            log(f"{run.found['name']}: tuned in {run.found.get('tune_s', 0):.0f} s")
        run.time()
        run.close()
        log(f"{run.found['name']}: {run.found['ms']}")
    return [run.found for run in runs]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table, one line per network."""
    header = (
        "network", *(f"{c} ms" for c in CONTENDERS), "dlight / tvmopt",
        "eager / tvmopt", "compiled / tvmopt", "max error", "kernels", "tuning s",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: dict[str, Any]) -> list[str]:
    ms, errors = row["ms"], row["errors"]
    ours = min((ms[c] for c in _OURS if c in ms), default=None)

    def ratio(contender: str) -> str:
        return f"{ms[contender] / ours:.3g}" if contender in ms and ours else "-"

    worst = max((errors[c] for c in _OURS if c in errors), default=float("nan"))
    return [
        row["name"],
        *(f"{ms[c]:.4g}" if c in ms else "-" for c in CONTENDERS),
        ratio("dlight"), ratio("eager"), ratio("compiled"),
        f"{worst:.1e}", str(row.get("kernels", "-")),
        f"{row['tune_s']:.0f}" if "tune_s" in row else "-",
    ]  # fmt: skip


def right(row: dict[str, Any]) -> bool:
    """Whether tvmopt has a latency, and an error against float32 within the tolerance."""
    allowed = _TOLERANCE[row["name"].rpartition("-")[2]]
    ours = [c for c in _OURS if c in row["ms"]]
    return bool(ours) and all(row["errors"][c] <= allowed for c in ours)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    from benchmarks.cuda_networks import NETWORKS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_models")
    parser.add_argument("--only", default="", help="names of networks, separated by commas")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="contenders to time")
    parser.add_argument(
        "--topk", type=int, default=0, help="configurations per function; 0: no tuning"
    )
    parser.add_argument("--json", default="", help="file to write the rows to")
    parser.add_argument("--out", default="", help="file to write the table to")
    args = parser.parse_args(arguments)
    names = [name for name in args.only.split(",") if name] or list(NETWORKS)
    contenders = args.contenders.split(",")
    for what, got, known in (("networks", names, NETWORKS), ("contenders", contenders, CONTENDERS)):
        unknown = [name for name in got if name not in known]
        if unknown:
            parser.error(f"{what} must be of {', '.join(known)}, but got {unknown[0]!r}")
    try:
        probe()
    except TvmoptError as error:
        parser.error(str(error))
    rows = measure(names, args.topk, contenders)
    facts = {"date": str(datetime.date.today()), "apache-tvm": TVM_VERSION, "topk": args.topk}
    facts |= next((row["versions"] for row in rows if "versions" in row), {})
    environment = ", ".join(f"{key} {value}" for key, value in facts.items())
    notes = [
        f"{row['name']}: {contender} failed: {problem}"
        for row in rows
        for contender, problem in row["problems"].items()
    ]
    text = "\n".join([environment, "", table(rows), "", *notes])
    if args.out:
        Path(args.out).write_text(text + "\n")
    if args.json:
        Path(args.json).write_text(json.dumps({"facts": facts, "rows": rows}, indent=1))
    print(text)
    return 0 if all(right(row) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

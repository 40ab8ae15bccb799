"""Compare single operators on a CUDA GPU: TVM with dlight, tvmopt top-1 and top-k, PyTorch.

Usage: ``python -m benchmarks.cuda_ops [--only ROWS] [--topk K] [--no-dlight] [--json FILE]
[--out FILE.md]``

The script tunes each operator of :mod:`benchmarks.cuda_rows`, then times all contenders interleaved
in one process: dlight's default schedule, the top-1 configuration, the best of ``topk`` measured
configurations, and PyTorch (cuBLAS, cuDNN). The reference is PyTorch in float64 or float32. The
exit code is 1 when a row fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cuda_rows import SEED_ROWS
from benchmarks.cuda_rows import row as row_of
from benchmarks.interleave import geometric_mean
from benchmarks.report import markdown, number
from tvmopt import host
from tvmopt.device.cuda import CudaArch, probe
from tvmopt.errors import TvmoptError
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measurer, argument_types, best_of
from tvmopt.measure.workers import Job, WorkerPool
from tvmopt.versions import TVM_VERSION

# Largest error allowed, relative to the largest magnitude of the result.
_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "tf32": 5e-3, "int32": 0.0}
_CONTENDERS = ("dlight", "top-1", "best", "torch")
# Tuned first, so that no row pays for the start of the workers.
_WARM_UP = "sum-64-256-float16"
_ROW_S, _BUILD_S = 120.0, 120.0  # timeouts of one job


@dataclasses.dataclass(frozen=True)
class OpRow:
    """Results of one operator.

    Attributes:
        name: Name of the row.
        group: Group of operators that is summarised together.
        ms: Median milliseconds, by contender.
        spread: Minimum and maximum milliseconds over the rounds, by contender.
        errors: Largest relative error, by contender.
        seconds: Seconds to rank, build, check and time ``topk`` configurations.
        seed_seconds: Tuning seconds in the fast dlight proposal; 0 if unknown.
        measured: Configurations with a correct result, of all that were tried.
        config: The best configuration.
        problems: Error of each contender that failed.
        problem: Error of the row; empty on success.
        versions: GPU name and versions of PyTorch, CUDA and cuDNN.
    """

    name: str
    group: str = ""
    ms: dict[str, float] = dataclasses.field(default_factory=dict)
    spread: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    seed_seconds: float = 0.0
    measured: str = ""
    config: str = ""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    versions: dict[str, object] = dataclasses.field(default_factory=dict)

    def ratio(self, contender: str, of: str = "best") -> float | None:
        """Latency of ``contender`` divided by that of ``of``; None if one has no latency."""
        if contender not in self.ms or of not in self.ms:
            return None
        return self.ms[contender] / self.ms[of]

    @property
    def right(self) -> bool:
        """Whether the best configuration ran and its error is within the tolerance."""
        allowed = _TOLERANCE[_out_dtype(self.name)]
        return not self.problem and self.errors.get("best", math.inf) <= allowed


def _out_dtype(name: str) -> str:
    dtype = name.rpartition("-")[2]
    return "int32" if dtype == "int8" else dtype


class RowRunner:
    """Worker processes that all rows share: for tuning, for dlight builds, for timing.

    Args:
        arch: The GPU.
        topk: Configurations to measure per row.
        scratch: Directory for libraries and logs.
        dlight: Whether dlight's default schedules are a contender.
    """

    def __init__(self, arch: CudaArch, topk: int, scratch: Path, dlight: bool = True) -> None:
        self._arch, self._topk, self._scratch, self._dlight = arch, topk, scratch, dlight
        self._measurer = Measurer(device_of(arch), scratch)
        self._builders = WorkerPool(host.usable_cores(), 1, scratch, "default")
        self._timer = WorkerPool(1, 1, scratch, "time")
        self._defaults: dict[str, tuple[Path, str]] = {}

    def __enter__(self) -> RowRunner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._measurer.__exit__(*exc_info)
        self._builders.close()
        self._timer.close()

    def build_defaults(self, names: Sequence[str]) -> None:
        """Build every row under dlight's default rules, and start the workers in parallel."""
        arch = self._arch.to_dict()
        paths = [self._scratch / f"default{index}.so" for index in range(len(names))]
        starting = threading.Thread(target=self._start)
        starting.start()
        jobs = [
            Job(
                "benchmarks.cuda_timing:build_default",
                {"row": name, "arch": arch, "path": str(path)}, _BUILD_S,
            )
            for name, path in zip(names, paths, strict=True)
            if self._dlight
        ]  # fmt: skip
        outcomes = self._builders.run(jobs)
        self._builders.close()
        for name, path, outcome in zip(names, paths, outcomes, strict=self._dlight):
            self._defaults[name] = path, outcome.error or ""
        self._timer.run([Job("benchmarks.cuda_timing:start", {}, _BUILD_S)])
        starting.join()

    def _start(self) -> None:
        """Start the workers of tuning."""
        func = row_of(_WARM_UP).func
        configs: Any = policy_of(func, self._arch).emit_config(self._topk)
        self._measurer.measure([Candidates(func, configs)])

    def measure(self, name: str) -> OpRow:
        """Tune one operator and time its contenders; errors are reported in the row."""
        row = row_of(name)
        start = time.perf_counter()
        policy = policy_of(row.func, self._arch)
        configs: Any = policy.emit_config(self._topk)
        if not configs:
            return OpRow(name, row.group, problem=f"no configuration: {policy.reason}")
        [tried] = self._measurer.measure([Candidates(row.func, configs)])
        seconds = time.perf_counter() - start
        best, top1 = best_of(tried), tried[0]
        if best is None or best.built is None:
            reasons = sorted({m.error or "" for m in tried})
            return OpRow(name, row.group, problem=f"all {len(tried)} failed: {reasons[0]}")
        path, problem = self._defaults.get(name, (None, ""))
        problems = {"dlight": problem} if problem else {}
        kernels = {} if problem or path is None else {"dlight": (str(path), "main")}
        for contender, m in (("top-1", top1), ("best", best)):
            if m.built is None or m.latency_us is None:
                problems[contender] = m.error or "not built"
            else:
                kernels[contender] = str(m.built.library), f"candidate{m.built.index}"
        job = Job(
            "benchmarks.cuda_timing:measure",
            {"row": name, "arguments": argument_types(row.func), "kernels": kernels}, _ROW_S,
        )  # fmt: skip
        [outcome] = self._timer.run([job])
        if outcome.error is not None:
            return OpRow(name, row.group, problem=f"timing: {outcome.error}")
        found = outcome.value
        right = sum(m.latency_us is not None for m in tried)
        for m in tried:
            if m.error:
                problems.setdefault("configurations", m.error)
        return OpRow(
            name, row.group, found["ms"], found["spread"], found["errors"], seconds, row.seconds,
            f"{right} of {len(tried)}", str(best.hint), problems | found["problems"],
            versions=found["versions"],
        )  # fmt: skip


def table(rows: Sequence[OpRow]) -> str:
    """Return a Markdown table, one line per operator."""
    header = (
        "operator", "dlight ms", "top-1 ms", "top-k ms", "PyTorch ms", "dlight / top-k",
        "PyTorch / top-k", "top-1 / top-k", "tuning s", "proposal's tuning s", "max error",
        "correct", "configuration",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: OpRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem}", *["-"] * 11]
    return [
        row.name,
        *(number(row.ms.get(contender), ".4g") for contender in _CONTENDERS),
        number(row.ratio("dlight"), ".4g"),
        number(row.ratio("torch"), ".4g"),
        number(row.ratio("top-1"), ".4g"),
        f"{row.seconds:.1f}",
        f"{row.seed_seconds:.1f}" if row.seed_seconds else "-",
        f"{row.errors.get('best', math.inf):.1e}",
        row.measured,
        row.config,
    ]


def summary(rows: Sequence[OpRow]) -> list[str]:
    """Return the summary, one line per figure."""
    done = [row for row in rows if not row.problem]
    lines = [
        f"correct: {sum(row.right for row in rows)} of {len(rows)}",
        f"dlight / top-k: {_mean(row.ratio('dlight') for row in done)}",
        f"tuning: {sum(row.seconds for row in done):.0f} s in total; slower than the proposal: "
        + (", ".join(r.name for r in done if r.seed_seconds and r.seconds > r.seed_seconds) or "-"),
        f"top-1 / top-k: {_mean(row.ratio('top-1') for row in done)}",
    ]
    for group in dict.fromkeys(row.group for row in done):
        of = [row for row in done if row.group == group]
        lines.append(
            f"{group}: PyTorch / top-k {_mean(row.ratio('torch') for row in of)}, top-1 / top-k "
            f"{_mean(row.ratio('top-1') for row in of)}"
        )
    for row in done:
        lines += [f"{row.name}: {name} failed: {text}" for name, text in row.problems.items()]
    return lines


def _mean(ratios: Iterable[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio]
    mean = geometric_mean(found)
    if mean is None:
        return "-"
    return f"{mean:.3g} (geometric mean of {len(found)}, {min(found):.3g} to {max(found):.3g})"


def write(rows: Sequence[OpRow], facts: dict[str, Any], args: argparse.Namespace) -> str:
    """Return the table so far; also write it to the files of ``--out`` and ``--json``."""
    known = facts | next((row.versions for row in rows if row.versions), {})
    environment = ", ".join(f"{key} {value}" for key, value in known.items())
    text = "\n".join([environment, "", table(rows), "", *summary(rows)])
    if args.out:
        Path(args.out).write_text(text + "\n")
    if args.json:
        data = {"facts": known, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(data, indent=1))
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_ops")
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    parser.add_argument("--topk", type=int, default=20, help="configurations to measure per row")
    parser.add_argument("--no-dlight", action="store_true", help="leave out dlight's schedules")
    parser.add_argument("--json", default="", help="file to write the rows to")
    parser.add_argument("--out", default="", help="file to write the table to")
    args = parser.parse_args(arguments)
    names = [name for name in args.only.split(",") if name] or list(SEED_ROWS)
    try:
        arch = probe()
        for name in names:
            row_of(name)
    except (TvmoptError, ValueError) as error:
        parser.error(str(error))
    facts = {
        "date": str(datetime.date.today()), "gpu": arch.name, "topk": args.topk,
        "apache-tvm": TVM_VERSION, "L2": "warm: every call reads the same buffers",
    }  # fmt: skip
    rows: list[OpRow] = []
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        RowRunner(arch, args.topk, Path(scratch), not args.no_dlight) as runner,
    ):
        start = time.perf_counter()
        runner.build_defaults(names)
        print(f"ready after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        for index, name in enumerate(names, start=1):
            row = runner.measure(name)
            rows.append(row)
            verdict = row.problem or (
                f"PyTorch / top-k {number(row.ratio('torch'), '.4g')}, {row.seconds:.1f} s"
            )
            elapsed = time.perf_counter() - start
            progress = f"{elapsed:.0f} s {index}/{len(names)} {name}: {verdict}"
            print(progress, file=sys.stderr, flush=True)
            write(rows, facts, args)
    print(f"\n{write(rows, facts, args)}")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The fast tuner on a CUDA GPU, operator by operator, beside TVM's default and PyTorch.

``python -m benchmarks.cuda_ops [--only ROWS] [--topk K] [--json FILE] [--out FILE.md]`` tunes each
row of the fast-tuning table, then times, in one process a row and in turns: dlight's default
schedule, the policy's first choice, the best of ``topk``, and PyTorch (cuBLAS, cuDNN). Every result
is checked against a reference of float64 or float32. Ends with 1 when a row fails.
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
from benchmarks.report import markdown
from tvmopt import host
from tvmopt.device.cuda import CudaArch, probe
from tvmopt.errors import TvmoptError
from tvmopt.kernels.policies import policy_of
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measurer, argument_types, best_of
from tvmopt.measure.workers import Job, WorkerPool
from tvmopt.versions import TVM_VERSION

# Largest error allowed, relative to the largest value of the result.
_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "int32": 0.0}
_CONTENDERS = ("dlight", "first", "best", "torch")
# Tuned first, so that no row pays for the start of the workers.
_WARM_UP = "sum-64-256-float16"
_ROW_S, _BUILD_S = 120.0, 120.0


@dataclasses.dataclass(frozen=True)
class OpRow:
    """What was measured of one operator.

    Attributes:
        name: The row's name.
        group: What bar it belongs to.
        ms: Median milliseconds, by contender.
        spread: Least and most of a round, by contender.
        errors: Largest relative error, by contender.
        seconds: Seconds of choosing, building, checking and timing ``topk`` configurations.
        seed_seconds: What the proposal's table has.
        measured: Configurations that were built and right, of those tried.
        config: The best configuration.
        problems: Contenders that failed, and why.
        problem: Why there is no row; empty when there is one.
        versions: Of the GPU and PyTorch.
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
        """How many times as fast ``of`` is as ``contender``; None where one has no time."""
        if contender not in self.ms or of not in self.ms:
            return None
        return self.ms[contender] / self.ms[of]

    @property
    def right(self) -> bool:
        """Whether the best was timed and its result is right."""
        allowed = _TOLERANCE[_out_dtype(self.name)]
        return not self.problem and self.errors.get("best", math.inf) <= allowed


def _out_dtype(name: str) -> str:
    dtype = name.rpartition("-")[2]
    return "int32" if dtype == "int8" else dtype


class Bench:
    """The workers that all rows share: one builds and tunes, one times beside PyTorch.

    Args:
        arch: The GPU.
        topk: Configurations of a row.
        scratch: Directory for libraries and logs.
    """

    def __init__(self, arch: CudaArch, topk: int, scratch: Path) -> None:
        self._arch, self._topk, self._scratch = arch, topk, scratch
        self._measurer = Measurer(device_of(arch), scratch)
        self._builders = WorkerPool(host.usable_cores(), 1, scratch, "default")
        self._timer = WorkerPool(1, 1, scratch, "time")
        self._defaults: dict[str, tuple[Path, str]] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._measurer.__exit__(*exc_info)
        self._builders.close()
        self._timer.close()

    def build_defaults(self, names: Sequence[str]) -> None:
        """Build TVM's own schedule of every row, and start the workers of tuning."""
        arch = self._arch.to_dict()
        paths = [self._scratch / f"default{number}.so" for number in range(len(names))]
        starting = threading.Thread(target=self._start)
        starting.start()
        jobs = [
            Job(
                "benchmarks.cuda_timing:build_default",
                {"row": name, "arch": arch, "path": str(path)}, _BUILD_S,
            )
            for name, path in zip(names, paths, strict=True)
        ]  # fmt: skip
        outcomes = self._builders.run(jobs)
        self._builders.close()
        for name, path, outcome in zip(names, paths, outcomes, strict=True):
            self._defaults[name] = path, outcome.error or ""
        self._timer.run([Job("benchmarks.cuda_timing:start", {}, _BUILD_S)])
        starting.join()

    def _start(self) -> None:
        """Start the workers of tuning."""
        func = row_of(_WARM_UP).func
        configs: Any = policy_of(func, self._arch).emit_config(self._topk)
        self._measurer.measure([Candidates(func, configs)])

    def measure(self, name: str) -> OpRow:
        """Tune one row and time its contenders; what goes wrong is told in the row."""
        row = row_of(name)
        start = time.perf_counter()
        policy = policy_of(row.func, self._arch)
        configs: Any = policy.emit_config(self._topk)
        if not configs:
            return OpRow(name, row.group, problem=f"no configuration: {policy.reason}")
        [tried] = self._measurer.measure([Candidates(row.func, configs)])
        seconds = time.perf_counter() - start
        best, first = best_of(tried), tried[0]
        if best is None or best.built is None:
            reasons = sorted({m.error or "" for m in tried})
            return OpRow(name, row.group, problem=f"all {len(tried)} failed: {reasons[0]}")
        path, problem = self._defaults[name]
        problems = {"dlight": problem} if problem else {}
        kernels = {} if problem else {"dlight": (str(path), "main")}
        for who, m in (("first", first), ("best", best)):
            if m.built is None or m.latency_us is None:
                problems[who] = m.error or "not built"
            else:
                kernels[who] = str(m.built.library), f"candidate{m.built.index}"
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
    """Markdown table, one line an operator."""
    header = (
        "operator", "default dlight ms", "first choice ms", "best ms", "PyTorch ms",
        "over dlight", "over PyTorch", "first over best", "tuning s", "seed's s", "error",
        "right", "configuration",
    )  # fmt: skip
    return markdown(header, (_cells(row) for row in rows))


def _cells(row: OpRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem}", *["-"] * 11]
    return [
        row.name,
        *(_number(row.ms.get(contender)) for contender in _CONTENDERS),
        _number(row.ratio("dlight")),
        _number(row.ratio("torch")),
        _number(row.ratio("first")),
        f"{row.seconds:.1f}",
        f"{row.seed_seconds:.1f}" if row.seed_seconds else "-",
        f"{row.errors.get('best', math.inf):.1e}",
        row.measured,
        row.config,
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def summary(rows: Sequence[OpRow]) -> list[str]:
    """The bars, one line each."""
    done = [row for row in rows if not row.problem]
    lines = [
        f"right: {sum(row.right for row in rows)} of {len(rows)}",
        f"over default dlight: {_mean(row.ratio('dlight') for row in done)}",
        f"tuning: {sum(row.seconds for row in done):.0f} s in all; over the seed's seconds: "
        + (", ".join(r.name for r in done if r.seed_seconds and r.seconds > r.seed_seconds) or "-"),
        f"first choice over the best: {_mean(row.ratio('first') for row in done)}",
    ]
    for group in dict.fromkeys(row.group for row in done):
        of = [row for row in done if row.group == group]
        lines.append(
            f"{group}: over PyTorch {_mean(row.ratio('torch') for row in of)}, first over best "
            f"{_mean(row.ratio('first') for row in of)}"
        )
    for row in done:
        lines += [f"{row.name}: {who} failed: {why}" for who, why in row.problems.items()]
    return lines


def _mean(ratios: Iterable[float | None]) -> str:
    found = [ratio for ratio in ratios if ratio]
    if not found:
        return "-"
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"{mean:.3g} (geometric mean of {len(found)}, {min(found):.3g} to {max(found):.3g})"


def write(rows: Sequence[OpRow], facts: dict[str, Any], args: argparse.Namespace) -> str:
    """The table so far, also where it was asked to be written."""
    known = facts | next((row.versions for row in rows if row.versions), {})
    told = ", ".join(f"{key} {value}" for key, value in known.items())
    text = "\n".join([told, "", table(rows), "", *summary(rows)])
    if args.out:
        Path(args.out).write_text(text + "\n")
    if args.json:
        data = {"facts": known, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(data, indent=1))
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_ops")
    parser.add_argument("--only", default="", help="rows by name, separated by commas")
    parser.add_argument("--topk", type=int, default=20, help="configurations measured a row")
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
        "apache-tvm": TVM_VERSION, "L2": "warm: every call reads the same arguments",
    }  # fmt: skip
    rows: list[OpRow] = []
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch,
        Bench(arch, args.topk, Path(scratch)) as bench,
    ):
        begun = time.perf_counter()
        bench.build_defaults(names)
        print(f"ready after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        for number, name in enumerate(names, start=1):
            row = bench.measure(name)
            rows.append(row)
            said = row.problem or f"{_number(row.ratio('torch'))} of PyTorch in {row.seconds:.1f} s"
            at = time.perf_counter() - begun
            print(f"{at:.0f} s {number}/{len(names)} {name}: {said}", file=sys.stderr, flush=True)
            write(rows, facts, args)
    print(f"\n{write(rows, facts, args)}")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

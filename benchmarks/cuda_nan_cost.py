"""Measure the latency cost of NaN propagation in Relu, Clip and Max on a CUDA GPU.

Usage: ``python -m benchmarks.cuda_nan_cost [--only NAMES] [--out FILE.md]``

The script builds each network of :mod:`benchmarks.cuda_networks` with the default schedules: twice
with the pass :mod:`tvmopt.kernels.passes.keep_nan` and once without it. It times the three
libraries interleaved in one process; the ratio of the two equal libraries is the noise. The columns
``NaN`` compare the outputs for images with NaN and infinities with PyTorch. The exit code is 1 when
a network fails, or when NaN differs with the pass. The script needs TVM and PyTorch, but neither
ONNX nor MLflow.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import functools
import math
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.cuda_timing import time_interleaved
from benchmarks.report import markdown, number
from tvmopt.device.cuda import probe
from tvmopt.errors import TvmoptError, last_line
from tvmopt.versions import TVM_VERSION

KEPT, DROPPED, AGAIN = "kept", "dropped", "kept again"
_BUILDERS = 4  # processes that compile in parallel


@dataclasses.dataclass(frozen=True)
class CudaNanCostRow:
    """Results of one network.

    Attributes:
        name: Name of the network.
        ms: Milliseconds per call in each round, by contender.
        agrees: Whether NaN is at the same positions as in PyTorch, by contender.
        problem: Error of the network; empty on success.
    """

    name: str
    ms: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    agrees: dict[str, bool] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the network ran and the pass keeps NaN."""
        return not self.problem and self.agrees[KEPT]

    def ratio(self, contender: str, of: str) -> float:
        """Median over rounds of the latency of ``contender`` divided by that of ``of``."""
        pairs = zip(self.ms[contender], self.ms[of], strict=True)
        return statistics.median(a / b for a, b in pairs)


def build(name: str, folder: str, keeps_nan: bool) -> str:
    """Build a network in a worker process; return the path of its library."""
    from benchmarks.cuda_networks import NETWORKS, lower_network
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.kernels.cuda import pipeline

    target = resolve_target("cuda")
    lowered = lower_network(NETWORKS[name], target)
    path = Path(tempfile.mkdtemp(dir=folder)) / "library.so"
    if keeps_nan:
        build_library(lowered, target, path)
    else:
        same = lambda given: given  # noqa: E731
        with (
            mock.patch.object(pipeline, "keep_nan", same),
            mock.patch.object(pipeline, "keep_nan_in_source", same),
        ):
            build_library(lowered, target, path)
    return str(path)


def measure(name: str, libraries: dict[str, str]) -> CudaNanCostRow:
    """Compare NaN with PyTorch, then time the libraries interleaved."""
    import torch

    from benchmarks.cuda_networks import NETWORKS, load_network
    from benchmarks.cuda_timing import burst_timer, tensor_of

    network = NETWORKS[name]
    image = network.example().cuda()
    runs = {contender: load_network(path, image) for contender, path in libraries.items()}
    eager = network.module().cuda().to(getattr(torch, network.dtype))
    agrees = dict.fromkeys(runs, True)
    clean = image.clone()
    for plant in _plants(torch):
        image.copy_(clean)
        plant(image.view(-1))
        with torch.no_grad():
            expected = torch.isnan(eager(image.to(getattr(torch, network.dtype))))
        for contender, run in runs.items():
            got = torch.isnan(tensor_of(torch, run()))
            agrees[contender] &= bool(torch.equal(got.cpu(), expected.cpu()))
    image.copy_(clean)
    timers = {contender: burst_timer(torch, run) for contender, run in runs.items()}
    return CudaNanCostRow(name, time_interleaved(timers), agrees)


def _plants(torch: Any) -> tuple[Callable[[Any], object], ...]:
    """Functions that write NaN into all elements of a flat image, or NaN or infinity into one."""

    def one(value: float, flat: Any) -> None:
        flat[flat.numel() // 2] = value

    return (
        lambda flat: flat.fill_(math.nan),
        functools.partial(one, math.nan),
        functools.partial(one, math.inf),
        functools.partial(one, -math.inf),
    )


def table(rows: Sequence[CudaNanCostRow]) -> str:
    """Return a Markdown table, one line per network."""
    header = (
        "network", "with the pass, ms", "without, ms", "with / without", "equal libraries",
        "NaN with the pass", "NaN without",
    )  # fmt: skip
    return markdown(header, [_cells(row) for row in rows])


def _cells(row: CudaNanCostRow) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem}", *["-"] * 5]
    verdict = {True: "as PyTorch", False: "differs"}
    return [
        row.name,
        *(number(statistics.median(row.ms[c]), ".4g") for c in (KEPT, DROPPED)),
        number(row.ratio(KEPT, DROPPED), ".4f"),
        number(row.ratio(AGAIN, KEPT), ".4f"),
        *(verdict[row.agrees[contender]] for contender in (KEPT, DROPPED)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_nan_cost")
    parser.add_argument("--only", default="", help="names of networks, separated by commas")
    parser.add_argument("--out", default="", help="file to write the table to")
    args = parser.parse_args(arguments)
    try:
        gpu = probe().name
    except TvmoptError as error:
        parser.error(str(error))
    from benchmarks.cuda_networks import NETWORKS

    names = [name for name in args.only.split(",") if name] or list(NETWORKS)
    unknown = sorted(set(names) - set(NETWORKS))
    if unknown:
        parser.error(f"networks must be of {', '.join(NETWORKS)}, but got {', '.join(unknown)}")
    rows: list[CudaNanCostRow] = []
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as folder,
        concurrent.futures.ProcessPoolExecutor(_BUILDERS, mp_context=spawn) as pool,
    ):
        built = {
            (name, contender): pool.submit(build, name, folder, contender != DROPPED)
            for name in names for contender in (KEPT, DROPPED, AGAIN)
        }  # fmt: skip
        concurrent.futures.wait(built.values())  # leaves the machine idle for the timing
        for name in names:
            try:
                paths = {c: built[name, c].result() for c in (KEPT, DROPPED, AGAIN)}
                rows.append(measure(name, paths))
            except Exception as error:  # reported in the row; the other networks go on
                rows.append(CudaNanCostRow(name, problem=last_line(error)))
            print(_cells(rows[-1]), file=sys.stderr, flush=True)
    done = [row for row in rows if not row.problem]
    facts = f"{datetime.date.today()}, {gpu}, apache-tvm {TVM_VERSION}"
    text = f"{facts}\n\n{table(rows)}\n"
    for label, contender, of in (
        ("with / without", KEPT, DROPPED), ("equal libraries", AGAIN, KEPT)
    ):  # fmt: skip
        if done:
            mean = statistics.geometric_mean(row.ratio(contender, of) for row in done)
            text += f"\n- {label}, geometric mean: {mean:.4f}"
    print(f"\n{text}")
    if args.out:
        Path(args.out).write_text(text + "\n")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

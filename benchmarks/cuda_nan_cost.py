"""Cost and effect on a CUDA GPU of keeping NaN in Relu, Clip and Max.

``python -m benchmarks.cuda_nan_cost [--only NAMES] [--out FILE.md]`` builds each network of
:mod:`benchmarks.cuda_networks` with the default schedules: twice with the pass
(:mod:`tvmopt.kernels.passes.keep_nan`), once without it. It then runs the three libraries in turns
in one process. The ratio of the two equal libraries shows the noise. ``NaN`` says whether the
outputs of images with NaN and infinities are NaN exactly where PyTorch's are. Needs TVM and
PyTorch, not ONNX or MLflow. Exits with 1 when a network fails or NaN differs with the pass.
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

from benchmarks.cuda_timing import in_turns
from benchmarks.report import markdown, number
from tvmopt.device.cuda import probe
from tvmopt.errors import TvmoptError, last_line
from tvmopt.versions import TVM_VERSION

KEPT, DROPPED, AGAIN = "kept", "dropped", "kept again"
_BUILDERS = 4


@dataclasses.dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        name: Its name.
        ms: Milliseconds of a call in each round, by contender.
        agrees: Whether NaN is where PyTorch has it, by contender.
        problem: Why nothing was measured; empty otherwise.
    """

    name: str
    ms: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    agrees: dict[str, bool] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the network was measured and keeps NaN."""
        return not self.problem and self.agrees[KEPT]

    def ratio(self, contender: str, of: str) -> float:
        """Median over rounds of ``contender``'s latency by that of ``of`` in the same round."""
        pairs = zip(self.ms[contender], self.ms[of], strict=True)
        return statistics.median(a / b for a, b in pairs)


def build(name: str, folder: str, keeps_nan: bool) -> str:
    """Build a network; returns the path of its library. Runs in a process of its own."""
    from benchmarks.cuda_networks import NETWORKS, to_relax
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.kernels.cuda import pipeline
    from tvmopt.transform.conversion import convert_module
    from tvmopt.transform.lower import lower

    network, target = NETWORKS[name], resolve_target("cuda")
    layout = "NHWC" if network.images else "NCHW"
    converted = convert_module(
        to_relax(network), dtype=network.dtype, layout=layout, skip_layers={}, keep_dtype={}
    )
    lowered = lower(converted.mod, target.to_tvm())
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


def measure(name: str, libraries: dict[str, str]) -> Row:
    """Compare NaN with PyTorch, then time the libraries in turns."""
    import torch
    import tvm
    from tvm import relax

    from benchmarks.cuda_models_worker import burst_timer, tensor_of
    from benchmarks.cuda_networks import NETWORKS
    from tvmopt.runtime.network import network as run_of

    network = NETWORKS[name]
    image = network.example().cuda()
    runs: dict[str, Callable[[], Any]] = {}
    for contender, path in libraries.items():
        machine = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cuda())
        runs[contender] = run_of(machine, [tvm.runtime.from_dlpack(image)], on_gpu=True)
    eager = network.module().cuda().to(getattr(torch, network.dtype))
    agrees = dict.fromkeys(runs, True)
    clean = image.clone()
    for plant in _plants(torch):
        image.copy_(clean)
        plant(image.view(-1))
        with torch.no_grad():
            wanted = torch.isnan(eager(image.to(getattr(torch, network.dtype))))
        for contender, run in runs.items():
            got = torch.isnan(tensor_of(torch, run()))
            agrees[contender] &= bool(torch.equal(got.cpu(), wanted.cpu()))
    image.copy_(clean)
    timers = {contender: burst_timer(torch, run) for contender, run in runs.items()}
    return Row(name, in_turns(timers), agrees)


def _plants(torch: Any) -> tuple[Callable[[Any], object], ...]:
    """What is written into a flat image: NaN in all elements, in one, and one infinity."""

    def one(value: float, flat: Any) -> None:
        flat[flat.numel() // 2] = value

    return (
        lambda flat: flat.fill_(math.nan),
        functools.partial(one, math.nan),
        functools.partial(one, math.inf),
        functools.partial(one, -math.inf),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    header = (
        "network", "with the pass, ms", "without, ms", "with / without", "equal libraries",
        "NaN with the pass", "NaN without",
    )  # fmt: skip
    return markdown(header, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    if row.problem:
        return [row.name, f"FAILED: {row.problem}", *["-"] * 5]
    said = {True: "as PyTorch", False: "differs"}
    return [
        row.name,
        *(number(statistics.median(row.ms[who]), ".4g") for who in (KEPT, DROPPED)),
        number(row.ratio(KEPT, DROPPED), ".4f"),
        number(row.ratio(AGAIN, KEPT), ".4f"),
        *(said[row.agrees[who]] for who in (KEPT, DROPPED)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_nan_cost")
    parser.add_argument("--only", default="", help="networks by name, separated by commas")
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
    rows: list[Row] = []
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tvmopt-") as folder,
        concurrent.futures.ProcessPoolExecutor(_BUILDERS, mp_context=spawn) as pool,
    ):
        built = {
            (name, who): pool.submit(build, name, folder, who != DROPPED)
            for name in names for who in (KEPT, DROPPED, AGAIN)
        }  # fmt: skip
        concurrent.futures.wait(built.values())  # nothing else runs while calls are timed
        for name in names:
            try:
                paths = {who: built[name, who].result() for who in (KEPT, DROPPED, AGAIN)}
                rows.append(measure(name, paths))
            except Exception as error:  # one network's failure is shown, and the others go on
                rows.append(Row(name, problem=last_line(error)))
            print(_cells(rows[-1]), file=sys.stderr, flush=True)
    done = [row for row in rows if not row.problem]
    facts = f"{datetime.date.today()}, {gpu}, apache-tvm {TVM_VERSION}"
    text = f"{facts}\n\n{table(rows)}\n"
    for words, contender, of in (("with / without", KEPT, DROPPED), ("equal", AGAIN, KEPT)):
        if done:
            mean = statistics.geometric_mean(row.ratio(contender, of) for row in done)
            text += f"\n- {words}, geometric mean: {mean:.4f}"
    print(f"\n{text}")
    if args.out:
        Path(args.out).write_text(text + "\n")
    return 0 if all(row.right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

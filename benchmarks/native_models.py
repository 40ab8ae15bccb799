"""Native code against TVM's virtual machine: ``python -m benchmarks.native_models``.

The same kernels, by default schedules, called in either way on bound inputs. Calls are interleaved;
a ratio below 1 means that native code is faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import zoo
from benchmarks.cpu_models import MODELS
from benchmarks.interleave import interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.options import begin_table, table_parser
from benchmarks.peers import Call


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = table_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="time of each row")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    given = begin_table(parser, arguments)
    print("| model | native, ms | virtual machine, ms | ratio | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name in given.models.split(","):
        print(_row(name, given.threads, given.seconds), flush=True)
    return 0


def _row(name: str, threads: int, seconds: float) -> str:
    from tvmopt.build import build_library
    from tvmopt.device.target import resolve_target
    from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
    from tvmopt.transform.lower import lower

    target = resolve_target("host", threads)
    shapes = parse_input_shapes(zoo.entry(name).input_shapes)
    prepared = prepare(load_onnx(zoo.path(name)), shapes)
    reference = Reference(prepared.reference, threads)
    _, inputs, _ = working_random_inputs(reference, input_specs(prepared.reference), seed=0)
    lowered = lower(import_onnx(prepared.model, layer_table(prepared.model)), target.to_tvm())
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as folder:
        calls: dict[str, Call] = {}
        for way in ("native", "machine"):
            path = Path(folder) / f"{way}.so"
            build_library(lowered, target, path, native=way == "native")
            calls[way] = library_call(path, list(inputs.values()))
    results = [arrays_of(call()) for call in calls.values()]
    apart = max(float(np.abs(a - b).max()) for a, b in zip(*results, strict=True))
    timings = interleave(calls, time_limit_s=seconds)
    native, machine = timings["native"], timings["machine"]
    return f"| {name} | {native} | {machine} | {native.median / machine.median:.3f} | {apart:.1e} |"


if __name__ == "__main__":
    raise SystemExit(main())

"""One library of several sizes against a library for each: ``python -m benchmarks.sizes``.

Usage: ``python -m benchmarks.sizes --model FILE.onnx --input_shapes "batch=1,4;length=16,64"
[--threads N] [--topk K] [--seconds S] [--calls "batch=3;length=40"]...``

Each size is called on random inputs and compared with a dynamic session of ONNX Runtime. The table
has the time of a call in the library of all sizes, in a library of that size alone, and in ONNX
Runtime; calls are interleaved. ``--calls`` adds sizes that the library must divide or pad.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx

import tvmopt
from benchmarks import peers
from benchmarks.interleave import geometric_mean, interleave
from benchmarks.options import begin_table, table_parser
from tvmopt.frontend.given_shapes import shapes_for
from tvmopt.frontend.given_sizes import parse_given_sizes
from tvmopt.random_inputs import random_arrays
from tvmopt.runtime import CompiledModel
from tvmopt.runtime.metadata import LIBRARY_FILE, TensorSpec


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a result is wrong."""
    parser = table_parser(__doc__)
    parser.add_argument("--model", required=True, help="an ONNX file with free dimensions")
    parser.add_argument("--input_shapes", required=True, help="sets of sizes")
    parser.add_argument("--topk", type=int, default=0, help="0: the default strategy")
    parser.add_argument("--seconds", type=float, default=4.0, help="time of each row")
    parser.add_argument("--calls", action="append", default=[], help="a size to call besides")
    parser.add_argument("--kind", default="", help="kind of random inputs")
    given = begin_table(parser, arguments)
    tuning = {"strategy": "fast", "topk": given.topk} if given.topk else {}
    build = partial(tvmopt.compile, given.model, threads=given.threads, **tuning)
    model = onnx.load(given.model)
    session = peers.ort_session(model, given.threads)
    several, several_s, several_bytes = _built(build, given.input_shapes)
    sizes = [size.text for size in parse_given_sizes(given.input_shapes).sizes]
    print("| size | one library, ms | alone, ms | ONNX Runtime, ms | one / alone | one / ORT |")
    print("| --- | --- | --- | --- | --- | --- |")
    worst, ratios, against = 0.0, [], []
    largest_s, largest_bytes = 0.0, 0
    for number, text in enumerate([*sizes, *given.calls]):
        inputs = _inputs(model, several, text, given.kind)
        calls: dict[str, Callable[[], object]] = {
            "several": partial(several, inputs), "ort": partial(session.run, None, inputs)
        }  # fmt: skip
        if number < len(sizes):
            alone, seconds, size = _built(build, text)
            if not number:
                largest_s, largest_bytes = seconds, size
            calls["alone"] = partial(alone, inputs)
        pairs = zip(several(inputs), session.run(None, inputs), strict=True)
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in pairs))
        timings = interleave(calls, time_limit_s=given.seconds)
        own, ort = timings["several"], timings["ort"]
        against.append(own.median / ort.median)
        beside, ratio = "-", "-"
        if "alone" in timings:
            ratios.append(own.median / timings["alone"].median)
            beside, ratio = str(timings["alone"]), f"{ratios[-1]:.3f}"
        print(f"| {text} | {own} | {beside} | {ort} | {ratio} | {against[-1]:.2f} |", flush=True)
    print(
        f"\none / alone: geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}; "
        f"by ONNX Runtime {geometric_mean(against):.2f}; largest deviation {worst:.1e}"
    )
    print(
        f"library {several_bytes / 1e6:.1f} MB, {several_bytes / largest_bytes:.2f} of the largest "
        f"size alone; built in {several_s:.0f} s, {several_s / largest_s:.1f} of it"
    )
    return int(worst > 1e-3)


def _built(build: Callable[..., CompiledModel], text: str) -> tuple[CompiledModel, float, int]:
    """Return a model, the seconds to build it, and the bytes of its library."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        model = build(text, output=Path(folder) / "bundle")
        seconds = time.perf_counter() - start
        return model, seconds, (Path(folder) / "bundle" / LIBRARY_FILE).stat().st_size


def _inputs(
    model: onnx.ModelProto, compiled: CompiledModel, text: str, kind: str
) -> dict[str, np.ndarray]:
    shapes = shapes_for(model, text)
    specs = [
        TensorSpec(spec.name, shapes.get(spec.name, spec.shape), spec.dtype)
        for spec in compiled.metadata.inputs
    ]
    if kind:
        return random_arrays(specs, 0, kind)
    rng = np.random.default_rng(0)
    return {
        spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
        if spec.dtype.startswith("float")
        else np.ones(spec.shape, spec.dtype)
        for spec in specs
    }


if __name__ == "__main__":
    raise SystemExit(main())

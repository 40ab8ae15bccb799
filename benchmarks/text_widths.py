"""A text recogniser over lines of different widths: ``python -m benchmarks.text_widths``.

One library has PP-OCR's recogniser in the widths 80, 160, ..., 960. The lines are the phrases of
this repository's README: a character is 22 pixels wide at a height of 48, longer ones are cut. We
pad a line with zeros to the next compiled width, as PaddleOCR pads the lines of a batch, and the
padding counts. ONNX Runtime and OpenVINO get sessions of dynamic width, and the line as it is.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import onnx

import tvmopt
from benchmarks import peers, zoo
from benchmarks.interleave import interleave
from benchmarks.options import begin_table, table_parser
from tvmopt.runtime.sizes import zero_padded

_HEIGHT, _CHARACTER = 48, 22
_STEP, _LEAST, _MOST = 80, 80, 960


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a result is wrong."""
    parser = table_parser(__doc__)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each line")
    given = begin_table(parser, arguments)
    model = onnx.load(zoo.path("ppocr_rec"))
    name = model.graph.input[0].name
    sizes = f"{name}:1x3x{_HEIGHT}x{{{_LEAST}:{_MOST}:{_STEP}}}"
    start = time.perf_counter()
    ours = tvmopt.compile(model, sizes, threads=given.threads)
    print(f"{len(ours.metadata.sizes)} sizes built in {time.perf_counter() - start:.0f} s")
    session = peers.ort_session(model, given.threads)
    openvino = peers.openvino_model(model, given.threads) if peers.available("openvino") else None
    times: dict[str, list[float]] = {}
    worst = 0.0
    rng = np.random.default_rng(0)
    widths = line_widths(Path(__file__).parents[1] / "README.md", given.lines)
    for width in widths:
        line = rng.standard_normal((1, 3, _HEIGHT, width)).astype(np.float32)
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(_padded, ours, line),
            "onnxruntime": partial(session.run, None, {name: line}),
        }
        if openvino is not None:
            calls["openvino"] = partial(openvino, {name: line})
        padded = zero_padded(line, (1, 3, _HEIGHT, _compiled(width)))
        [wanted] = session.run(None, {name: padded})
        worst = max(worst, float(np.abs(_padded(ours, line) - wanted).max()))
        for label, timing in interleave(calls, time_limit_s=given.seconds, rounds=5).items():
            times.setdefault(label, []).append(timing.median)
    print(
        f"\n{len(widths)} lines, {min(widths)} to {max(widths)} pixels, mean {mean(widths):.0f}\n"
    )
    print("| runtime | mean, ms | ours by it |")
    print("| --- | --- | --- |")
    for label, found in times.items():
        print(f"| {label} | {mean(found):.2f} | {mean(times['ours']) / mean(found):.3f} |")
    print(f"\nlargest deviation from ONNX Runtime {worst:.1e}")
    return int(worst > 1e-3)


def line_widths(text: Path, count: int) -> list[int]:
    """Return the pixels of some phrases of a text, evenly spaced over it."""
    lines = [part.strip() for part in re.split(r"[\n.,;:|()`]+", text.read_text()) if part.strip()]
    chosen = [lines[i * len(lines) // count] for i in range(count)]
    return [min(_MOST, max(_LEAST, _CHARACTER * len(line))) for line in chosen]


def _compiled(width: int) -> int:
    return _STEP * math.ceil(width / _STEP)


def _padded(model: tvmopt.CompiledModel, line: np.ndarray) -> np.ndarray:
    return model(zero_padded(line, (1, 3, _HEIGHT, _compiled(line.shape[-1]))))[0]


if __name__ == "__main__":
    raise SystemExit(main())

"""Compare quantizers of int8: accuracy on samples that calibration does not see, and time.

    python -m benchmarks.quantizers efficientnet_lite0 mobilenet_v2 --samples 40

All models run in ONNX Runtime. Rows:

- `one scale`: ONNX Runtime's quantizer, without the scales of channels and without corrections.
- `onnxruntime`, `nncf`, `nncf-accurate`, `auto`: values of the parameter `quantizer`, on top of the
  channel scales that help.
- `NNCF <preset> <bias correction>`: the QDQ model that NNCF itself writes.
- `<quantizer> at ...`: the same layers stay float that NNCF leaves float.

The cosine and the top-1 agreement compare the first output with the float model's.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx

from benchmarks import zoo
from benchmarks.nncf_models import PRESETS, integer_layers, label, quantised_by_nncf
from benchmarks.real_inputs import samples
from tvmopt.choices import AUTO, QUANTIZERS
from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs
from tvmopt.quantize import (
    Ranges,
    Scheme,
    collect_ranges,
    correct,
    quantize_model,
    with_channel_scales,
)
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.select import integer_anchors

_HEADER = (
    "| model | quantiser | int8 layers | smallest cosine | mean cosine | top-1 | calibration |"
)


@dataclasses.dataclass(frozen=True)
class Score:
    """Accuracy of a quantized model against the float model."""

    smallest: float
    mean: float
    top1: float


class Contest:
    """One model with calibration samples and held-out samples.

    Args:
        name: A model of the zoo.
        count: Number of calibration samples, and of held-out samples.
    """

    def __init__(self, name: str, count: int) -> None:
        loaded = load_onnx(zoo.path(name))
        prepared = prepare(loaded, shapes_for(loaded, zoo.entry(name).input_shapes))
        specs = input_specs(prepared.reference)
        self.name, self.model = name, prepared.model
        self.calibration, self._held_out = (
            [
                {key: value[at] for key, value in arrays.items()}
                for arrays in [samples(name, specs, count, seed)]
                for at in range(count)
            ]
            for seed in (0, 1)
        )
        self._graph = Graph(normalise(self.model).graph)
        session = new_session(self.model)
        self._exact = [session.run(None, inputs)[0] for inputs in self._held_out]

    def score(self, model: onnx.ModelProto) -> Score:
        """Return the accuracy of a quantized model on the held-out samples."""
        session = new_session(model)
        cosines, agreements = [], []
        for inputs, exact in zip(self._held_out, self._exact, strict=True):
            got = session.run(None, inputs)[0]
            a, b = got.ravel().astype(np.float64), exact.ravel().astype(np.float64)
            cosines.append(float(a @ b / np.sqrt((a @ a) * (b @ b))))
            agreements.append(float(np.mean(got.argmax(-1) == exact.argmax(-1))))
        return Score(min(cosines), float(np.mean(cosines)), float(np.mean(agreements)))

    def float_layers(self, quantised: onnx.ModelProto) -> list[str]:
        """Return the layers that could be int8 and are not in ``quantised``."""
        names = [node.name for node in self._anchors()]
        integer = set(integer_layers(quantised, names))
        return [name for name in names if name not in integer]

    def row(self, what: str, model: onnx.ModelProto, seconds: float) -> str:
        """Return a row of the table."""
        layers, found = len(self._anchors()), self.score(model)
        integer = layers - len(self.float_layers(model))
        return (
            f"| {self.name} | {what} | {integer} of {layers} | {found.smallest:.5f} | "
            f"{found.mean:.5f} | {found.top1:.1%} | {seconds:.1f} s |"
        )

    def _anchors(self) -> list[onnx.NodeProto]:
        return integer_anchors(self._graph, Scheme())


def rows(contest: Contest) -> Iterator[str]:
    """Yield the rows of one model."""
    start = time.perf_counter()
    ranges = collect_ranges(contest.model, contest.calibration)
    plain_s = time.perf_counter() - start
    yield contest.row("one scale", quantize_model(contest.model, ranges, Scheme()), plain_s)
    ranges, _ = with_channel_scales(contest.model, ranges, contest.calibration)
    ranges_s = time.perf_counter() - start
    found: dict[str, Ranges] = {}
    for quantizer in (*QUANTIZERS, AUTO):
        start = time.perf_counter()
        try:
            corrected = correct(contest.model, ranges, contest.calibration, quantizer)
        except ModelError as error:
            yield _failed(contest, quantizer, error)
            continue
        seconds = ranges_s + time.perf_counter() - start
        found[quantizer] = corrected.ranges
        chosen = f" ({corrected.quantizer})" if quantizer == AUTO else ""
        model = quantize_model(contest.model, corrected.ranges, Scheme())
        yield contest.row(quantizer + chosen, model, seconds)
    compared: set[tuple[str, ...]] = {()}
    for preset, is_fast in PRESETS:
        what = label(preset, is_fast)
        start = time.perf_counter()
        try:
            theirs = quantised_by_nncf(contest.model, contest.calibration, preset, is_fast)
        except Exception as error:
            yield _failed(contest, what, error)
            continue
        yield contest.row(what, theirs, time.perf_counter() - start)
        left = contest.float_layers(theirs)
        if tuple(left) not in compared:
            compared.add(tuple(left))
            yield from _at_equal_share(contest, found, left)


def _at_equal_share(
    contest: Contest, found: dict[str, Ranges], left: Collection[str]
) -> Iterator[str]:
    for quantizer, ranges in found.items():
        model = quantize_model(contest.model, ranges, Scheme(), left)
        yield contest.row(f"{quantizer} at NNCF's int8 layers", model, 0.0)


def _failed(contest: Contest, what: str, error: Exception) -> str:
    return f"| {contest.name} | {what} | fails: {in_one_line(error)[-90:]} | | | | |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantizers", description=__doc__.split("\n")[0]
    )
    parser.add_argument("models", nargs="+", help="models of the zoo")
    parser.add_argument("--samples", type=int, default=40, help="samples to calibrate on")
    given = parser.parse_args(arguments)
    print(_HEADER, "|---|---|---|---|---|---|---|", sep="\n")
    for name in given.models:
        for row in rows(Contest(name, given.samples)):
            print(row, flush=True)


if __name__ == "__main__":
    main()

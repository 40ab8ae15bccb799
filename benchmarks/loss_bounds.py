"""Compare the predicted loss of a proposed skip set, and its bound, with the loss on new samples.

    python -m benchmarks.loss_bounds efficientnet_lite0 ppocr_rec --samples 64 --seconds 60

For each model: calibrate as the calibrate stage does, analyse int8 as the sensitivity stage does,
and run the proposed set on as many samples that neither has seen. Everything runs in ONNX Runtime.
The loss is the mean over samples of ``1 - cosine`` of the worst output.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import numpy as np

from benchmarks import zoo
from benchmarks.real_inputs import samples
from tvmopt.compare import cosine
from tvmopt.evaluate.dataset import Dataset
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs
from tvmopt.quantize import (
    Quantizer,
    Scheme,
    collect_ranges,
    correct,
    sensitivity,
    with_channel_scales,
)
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.report import best

_HEADER = (
    "| model | int8 layers | samples | loss predicted from single layers | measured together | "
    "95 % bound | on new samples | within |"
)


def row(name: str, count: int, seconds: float) -> str:
    """Return the row of one model."""
    loaded = load_onnx(zoo.path(name))
    prepared = prepare(loaded, shapes_for(loaded, zoo.entry(name).input_shapes))
    specs = input_specs(prepared.reference)
    seen, new = (Dataset(specs, samples(name, specs, count, s), None, stacked=True) for s in (0, 1))
    batches = [batch.inputs for batch in seen.batches()]
    ranges, _ = with_channel_scales(
        prepared.model, collect_ranges(prepared.model, batches), batches
    )
    ranges = correct(prepared.model, ranges, batches, "auto").ranges
    found = sensitivity(prepared, seen, dtypes=["int8"], ranges=ranges, time_limit_s=seconds)
    chosen = best(found.sets("int8"))
    names = {cost.index: cost.name for cost in found.of("int8")}
    quantizer = Quantizer(prepared.model, ranges, Scheme())
    quantised = new_session(quantizer([names[index] for index in chosen.layers]))
    exact = new_session(prepared.model)
    losses = []
    for batch in new.batches():
        pairs = zip(quantised.run(None, batch.inputs), exact.run(None, batch.inputs), strict=True)
        losses.append(1 - min(cosine(np.asarray(a), np.asarray(b)) for a, b in pairs))
    loss, bound = statistics.fmean(losses), chosen.loss_bound
    cells = [
        name,
        f"{len(names) - len(chosen.layers)} of {len(names)}",
        str(chosen.samples),
        f"{chosen.predicted_loss:.2e}",
        "-" if chosen.mean_loss is None else f"{chosen.mean_loss:.2e}",
        "-" if bound is None else f"{bound:.2e}",
        f"{loss:.2e}",
        "-" if bound is None else "yes" if loss <= bound else "no",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loss_bounds", description=__doc__.split("\n")[0]
    )
    parser.add_argument("models", nargs="+", help="models of the zoo")
    parser.add_argument("--samples", type=int, default=64, help="samples seen, and new samples")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each analysis")
    given = parser.parse_args(arguments)
    print(_HEADER, "|---|---|---|---|---|---|---|---|", sep="\n")
    for name in given.models:
        print(row(name, given.samples, given.seconds), flush=True)


if __name__ == "__main__":
    main()

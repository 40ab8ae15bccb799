"""What `dtype=auto` chooses for a CPU with bfloat16, and what accuracy it loses on new samples.

    python -m benchmarks.mixed_accuracy ppocr_rec efficientnet_lite0 centerface layout_cdla

For each model: calibrate and choose dtypes as the stages do, for `--target` (times are predicted
where this machine is none), under a drop of `--limit`. Then the chosen dtypes run on new samples in
ONNX Runtime, beside the most accurate int8 model of NNCF's presets. PP-OCR rec is measured by the
character error rate of drawn lines of known strings, the others by their fidelity.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from benchmarks import zoo
from benchmarks.nncf_models import PRESETS, integer_layers, label, quantised_by_nncf
from benchmarks.real_inputs import samples, text_lines
from tvmopt.device.target import resolve_target
from tvmopt.errors import in_one_line
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Dataset
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.class_scores import find_class_scores
from tvmopt.frontend.layers import layer_table
from tvmopt.frontend.prepare import Prepared
from tvmopt.frontend.reference import input_specs
from tvmopt.metrics.metric import Metric, find_metric
from tvmopt.quantize import (
    HeldBack,
    Quantizer,
    Scheme,
    collect_ranges,
    correct,
    sensitivity,
    with_channel_scales,
)
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.map_measurement import emulated
from tvmopt.quantize.mixed_biases import with_biases
from tvmopt.quantize.roofline import layer_dtypes

_HEADER = (
    "| model | dtypes | multiply-adds in int8 | metric | float32 | converted | drop (95 %) | "
    "mean 1 - cosine |"
)


class Case:
    """A model with calibration samples and new samples.

    Args:
        name: A model of the zoo.
        counts: Number of calibration samples, and of new samples.
        seed: Of both; samples of two seeds are others.
    """

    def __init__(self, name: str, counts: tuple[int, int], seed: int = 0) -> None:
        self.name = name
        loaded = load_onnx(zoo.path(name))
        self.prepared: Prepared = prepare(loaded, shapes_for(loaded, zoo.entry(name).input_shapes))
        self.model = self.prepared.model
        self._specs = input_specs(self.prepared.reference)
        self.metric: Metric | str = "fidelity"
        if name == "ppocr_rec":
            outputs = [value.name for value in self.prepared.reference.graph.output]
            with tempfile.TemporaryDirectory() as folder:
                symbols = Path(folder) / "symbols.txt"
                symbols.write_text(alphabet(self.prepared.reference), encoding="utf-8")
                found = find_metric("cer", "", outputs, str(symbols), 0)
            assert found is not None
            self.metric = found
        self.seen, self.new = (self._data(count, at) for at, count in enumerate(counts, 2 * seed))
        self.layers = {layer.index: layer for layer in layer_table(self.model)}
        self.names = {layer.name for layer in self.layers.values()}

    def _data(self, count: int, seed: int) -> Dataset:
        spec = self._specs[0]
        if self.name == "ppocr_rec":
            images, texts = text_lines(spec.shape[2], spec.shape[3], count, seed)
            return Dataset(self._specs, {spec.name: images}, texts, stacked=True)
        arrays = samples(self.name, self._specs, count, seed)
        return Dataset(self._specs, arrays, None, stacked=True)

    def accuracy(self, model: onnx.ModelProto) -> Accuracy:
        """Return the accuracy on the new samples."""
        scores = find_class_scores(self.model)
        meter = AccuracyMeter(self.metric, self.new.labels is not None, class_scores=scores)
        session, exact = new_session(model), new_session(self.model)
        rounding = InputRounding(self.new.arrays)
        for batch in self.new.batches():
            got, want = (s.run(None, batch.inputs) for s in (session, exact))
            again = []
            if meter.takes_again:
                again = rounding.first_outputs(lambda x: exact.run(None, x), batch.inputs)
            meter.add(got, want, batch.labels, batch.valid, batch.padding, again)
        return meter.result(with_interval=True)

    def integer(self, model: onnx.ModelProto) -> list[int]:
        """Return the layers that run in integers in a quantized model."""
        found = set(integer_layers(model, [layer.name for layer in self.layers.values()]))
        return [index for index, layer in self.layers.items() if layer.name in found]

    def row(self, dtypes: str, integer: Sequence[int], model: onnx.ModelProto) -> str:
        """Return a row of the table.

        Args:
            dtypes: What the layers are, as words.
            integer: Indices of the layers in int8.
            model: The converted model, for ONNX Runtime.
        """
        found = self.accuracy(model)
        share = sum(self.layers[i].flops or 0 for i in integer) / sum(
            layer.flops or 0 for layer in self.layers.values()
        )
        interval = "" if found.interval is None else " ({:.4f} to {:.4f})".format(*found.interval)
        return (
            f"| {self.name} | {dtypes} | {share:.1%} | {found.metric} | {found.reference:.4f} | "
            f"{found.accuracy:.4f} | {found.drop:.4f}{interval} | {found.mean_loss:.5f} |"
        )


def alphabet(model: onnx.ModelProto) -> str:
    """Return the alphabet of PP-OCR's recogniser: its own characters, and the space at the end."""
    [text] = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return "\n".join([*text.split("\n"), " "]) + "\n"


def rows(
    case: Case, target: str, limit: float, seconds: float, *, with_nncf: bool = True
) -> Iterator[str]:
    """Yield the rows of one model."""
    spec = resolve_target(target, 2)
    batches = [batch.inputs for batch in case.seen.batches()]
    start, cpu = time.perf_counter(), time.process_time()
    held_back = HeldBack(case.model, batches)
    ranges = collect_ranges(case.model, batches)
    ranges, _ = with_channel_scales(case.model, ranges, batches, held_back)
    ranges = correct(case.model, ranges, batches, "auto", held_back=held_back).ranges
    found = sensitivity(
        case.prepared, case.seen, dtypes=layer_dtypes(spec), ranges=ranges, target=spec,
        time_limit_s=seconds, max_drop=limit, layer_dtypes=True, metric=case.metric,
    )  # fmt: skip
    spent = time.perf_counter() - start, time.process_time() - cpu
    by_layer = found.chosen_map.by_layer
    by_name = {c.name: by_layer.get(c.index, "float32") for c in found.costs if not c.reason}
    mixed = with_biases(ranges, found.chosen_map.biases, by_name)
    model = emulated(case.model, Quantizer(case.model, mixed, Scheme()), by_name)
    counts = {d: list(by_layer.values()).count(d) for d in found.dtypes}
    counts["float32"] = len(case.layers) - sum(counts.values())
    words = "auto: " + ", ".join(f"{count} {dtype}" for dtype, count in counts.items() if count)
    words += " ({:.0f} s, {:.0f} s of CPU)".format(*spent)
    yield case.row(words, [i for i, d in by_layer.items() if d == "int8"], model)
    quantizer = Quantizer(case.model, ranges, Scheme())
    yield case.row("all int8", *_everything(case, quantizer))
    theirs = {}
    for preset, is_fast in PRESETS if with_nncf else ():
        what = label(preset, is_fast)
        try:
            theirs[what] = quantised_by_nncf(case.model, batches, preset, is_fast)
        except Exception as error:
            yield f"| {case.name} | {what} fails: {in_one_line(error)[:60]} | | | | | | |"
    losses = {what: case.accuracy(model).mean_loss for what, model in theirs.items()}
    for what in losses and [min(losses, key=lambda what: losses[what])]:
        integer = case.integer(theirs[what])
        yield case.row(f"{what}, the best", integer, theirs[what])
        names = {case.layers[index].name for index in integer}
        left = [name for name in quantizer.integer_nodes() if name in case.names - names]
        yield case.row("ours at the same int8 layers", integer, quantizer(left))


def _everything(case: Case, quantizer: Quantizer) -> tuple[list[int], onnx.ModelProto]:
    chosen = quantizer.integer_nodes()
    return [i for i, layer in case.layers.items() if layer.name in chosen], quantizer()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mixed_accuracy", description=__doc__.split("\n")[0]
    )
    parser.add_argument("models", nargs="+", help="models of the zoo")
    parser.add_argument("--target", default="sapphirerapids", help="the target")
    parser.add_argument("--limit", type=float, default=0.01, help="largest drop of the metric")
    parser.add_argument("--calibration", type=int, default=64, help="calibration samples")
    parser.add_argument("--new", type=int, default=200, help="new samples")
    parser.add_argument("--seconds", type=float, default=150.0, help="limit of each analysis")
    parser.add_argument("--seed", type=int, default=0, help="seed of all samples")
    parser.add_argument("--without-nncf", action="store_true", help="leave NNCF's presets out")
    given = parser.parse_args(arguments)
    print(_HEADER, "|---|---|---|---|---|---|---|---|", sep="\n")
    for name in given.models:
        case = Case(name, (given.calibration, given.new), given.seed)
        options = {"with_nncf": not given.without_nncf}
        for line in rows(case, given.target, given.limit, given.seconds, **options):
            print(line, flush=True)


if __name__ == "__main__":
    main()

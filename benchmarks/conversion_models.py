"""Convert real models to each dtype and layout, and print accuracy, skipped layers and seconds.

Usage: ``python -m benchmarks.conversion_models [--only NAMES] [--model FILE --input_shapes S]
[--dtypes float16,bfloat16,int8] [--layouts NCHW,NHWC] [--skip_layers auto] [--samples N]``

The script compiles each converted model with the default schedules and prints one table. The
reference is the float model in ONNX Runtime. The evaluation samples are disjoint from the samples
of calibration and sensitivity analysis.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import options, real_inputs, report, zoo
from benchmarks.cpu_models import ModelFile, model_files
from tvmopt.config import CalibrateConfig, ConvertConfig, SensitivityConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import TvmoptError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.reference import Reference, input_specs
from tvmopt.skip_layers import SkipLayers
from tvmopt.stages.calibrate import calibrate
from tvmopt.stages.check import compile_for_check
from tvmopt.stages.convert import convert
from tvmopt.stages.module_files import REFERENCE_FILE, read_module
from tvmopt.stages.sensitivity import sensitivity


@dataclasses.dataclass(frozen=True)
class ConversionRow:
    """One conversion; ``error`` is empty when it succeeded."""

    model: str
    dtype: str
    layout: str
    layers: int = 0
    skipped: int = 0
    layout_changes: int = 0
    convert_s: float = 0.0
    cosine: float = 0.0
    agreement: float | None = None
    accuracy_drop: float | None = None
    samples: int = 0
    error: str = ""


def _quiet(done: int, total: int, text: str) -> None:
    """Ignore a progress report."""


class ModelConversions:
    """One model, its samples, and the calibration result that its int8 conversions share.

    Args:
        file: The model.
        data: ``.npz`` file with samples; by default samples of :mod:`benchmarks.real_inputs`.
        samples: Number of samples to draw without ``data``.
        threads: Threads of the target.
    """

    def __init__(self, file: ModelFile, data: Path | None, samples: int, threads: int) -> None:
        self.name, self.path, self.shapes = file.name, file.path, file.shapes
        self.target = resolve_target("host", threads)
        self.work = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        prepared = prepare(load_onnx(self.path), parse_input_shapes(self.shapes))
        self.specs = input_specs(prepared.reference)
        if data is None:
            data = self.work / "data.npz"
            arrays = real_inputs.samples(self.name, self.specs, samples, seed=5)
            np.savez(data, allow_pickle=False, **arrays)
        self.data = data
        self._calibrated: Path | None = None

    def folder(self, name: str) -> Path:
        """Create a new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    def calibrated(self) -> Path:
        """Return the folder with the calibration ranges; the first call collects them."""
        if self._calibrated is None:
            self._calibrated = self.folder("calibrate")
            config = CalibrateConfig(self.shapes)
            calibrate(config, self.path, self._calibrated, _quiet, self.data)
        return self._calibrated

    def sensitivity(self, dtype: str) -> Path:
        """Rank the layers by their sensitivity to ``dtype``; return the result's folder."""
        out = self.folder("sensitivity")
        config = SensitivityConfig(self.shapes, self.target.to_dict(), (dtype,))
        ranges = self.calibrated() if dtype == "int8" else None
        sensitivity(config, self.path, out, _quiet, self.data, ranges)
        return out

    def convert(
        self, dtype: str, layout: str, skip_layers: str, sensitive: Path | None
    ) -> ConversionRow:
        """Convert, compile, and measure accuracy on the evaluation split."""
        out = self.folder("convert")
        config = ConvertConfig(
            self.shapes,
            self.target.to_dict(),
            layout=layout,
            dtype=dtype,
            skip_layers=SkipLayers.parse(skip_layers),
        )
        ranges = self.calibrated() if dtype == "int8" else None
        start = time.perf_counter()
        try:
            result = convert(config, self.path, out, _quiet, self.data, ranges, sensitive)
        except TvmoptError as error:
            return ConversionRow(self.name, dtype, layout, error=str(error))
        seconds = time.perf_counter() - start
        run = compile_for_check(read_module(out), self.target)
        reference = Reference(str(out / REFERENCE_FILE), self.target.threads)
        dataset = load_dataset(self.data, self.specs).split("evaluate")
        meter = AccuracyMeter("auto", dataset.labels is not None)
        for batch in dataset.batches():
            got = run(list(batch.inputs.values()))
            meter.add(got, reference(batch.inputs), batch.labels, batch.valid, batch.padding)
        found, metrics = meter.result(), result.metrics
        return ConversionRow(
            self.name,
            dtype,
            layout,
            int(metrics["layers"]),
            int(metrics["layers_skipped"]),
            int(metrics["layout_changes"]),
            seconds,
            found.cosine,
            found.agreement,
            found.drop if found.metric == "top1" else None,
            found.samples,
        )


def table(rows: list[ConversionRow]) -> str:
    """Return a Markdown table, one line per conversion."""
    header = [field.name for field in dataclasses.fields(ConversionRow)]
    return report.markdown(header, ([_cell(v) for v in dataclasses.astuple(row)] for row in rows))


def _cell(value: str | int | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else str(value)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of zoo models, separated by commas")
    parser.add_argument("--model", default="", help="an ONNX file instead of the zoo")
    parser.add_argument("--input_shapes", default="")
    parser.add_argument("--data", type=Path, help=".npz with samples")
    parser.add_argument("--dtypes", default="float16,bfloat16,int8")
    parser.add_argument("--layouts", default="NCHW")
    parser.add_argument("--skip_layers", default="auto")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    with options.errors_in_one_line(parser):
        todo = model_files(parser, args, [entry.name for entry in zoo.ENTRIES])
    rows = []
    for file in todo:
        conversions = ModelConversions(file, args.data, args.samples, args.threads)
        for dtype in args.dtypes.split(","):
            auto = args.skip_layers == "auto" and dtype != "float32"
            start = time.perf_counter()
            sensitive = conversions.sensitivity(dtype) if auto else None
            spent = time.perf_counter() - start
            for layout in args.layouts.split(","):
                row = conversions.convert(dtype, layout, args.skip_layers, sensitive)
                rows.append(row)
                print(f"{row} (sensitivity {spent:.0f} s)", flush=True)
    print(table(rows))
    return int(any(row.error for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Quantise a model by NNCF's presets, as contenders of :mod:`benchmarks.search_champion`.

Usage: ``python -m benchmarks.quantise_contenders --model FILE.onnx --data FILE.npz --out FOLDER
[--input_shapes SHAPES]``

Writes ``PRESET.onnx`` for each preset with the fast bias correction, calibrated on the calibration
split of the data. It takes minutes, and may run beside the search.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from benchmarks import peers, report
from benchmarks.nncf_models import quantised_by_nncf
from tvmopt.evaluate.dataset import Dataset, load_dataset
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import input_specs

_PRESETS = ("mixed", "performance")
_CALIBRATION = 100  # most batches


def quantised_contenders(model: onnx.ModelProto, seen: Dataset) -> dict[str, onnx.ModelProto]:
    """Return the models that NNCF quantises on ``seen``, by preset.

    A preset that fails is printed and left out. Without NNCF there are none.
    """
    found: dict[str, onnx.ModelProto] = {}
    if not peers.available("nncf"):
        return found
    batches = [batch.inputs for batch in seen.batches()][:_CALIBRATION]
    for preset in _PRESETS:
        try:
            found[preset] = quantised_by_nncf(model, batches, preset, is_fast=True)
        except Exception as error:
            print(f"NNCF {preset}: {report.one_line(error)}")
    return found


def main() -> int:
    """Run the command line; return 1 if no preset worked."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True, type=Path, help="the float model")
    parser.add_argument("--data", required=True, type=Path, help="data file of the search")
    parser.add_argument("--input_shapes", default="", help="as for the search")
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    args = parser.parse_args()
    loaded = load_onnx(args.model)
    model = prepare(loaded, shapes_for(loaded, args.input_shapes)).reference
    seen = load_dataset(args.data, input_specs(model)).split("calibrate")
    args.out.mkdir(parents=True, exist_ok=True)
    found = quantised_contenders(model, seen)
    for preset, quantised in found.items():
        onnx.save_model(quantised, str(args.out / f"{preset}.onnx"))
    return int(not found)


if __name__ == "__main__":
    raise SystemExit(main())

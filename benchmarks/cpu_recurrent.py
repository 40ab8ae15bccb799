"""LSTM, GRU and RNN layers against ONNX Runtime: ``python -m benchmarks.cpu_recurrent``.

Sequences of 100 steps, batch 1, by default schedules; with ``--dtype`` the layer is converted
first. Calls are interleaved; a ratio below 1 means that ours is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks import peers
from benchmarks.interleave import interleave
from benchmarks.options import begin_table, table_parser
from benchmarks.recurrent_layers import layers, model

HIDDEN = (128, 256, 512)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    import tvmopt

    parser = table_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="time of each row")
    parser.add_argument("--dtype", default="float32", help="dtype of the GEMMs' weights")
    given = begin_table(parser, arguments)
    print("| layer | hidden | ours, ms | ONNX Runtime, ms | ours / ONNX Runtime | deviation |")
    print("| --- | --- | --- | --- | --- | --- |")
    for layer in layers(HIDDEN):
        session = peers.ort_session(model(layer), given.threads)
        ours = tvmopt.compile(model(layer), threads=given.threads, dtype=given.dtype)
        x = layer.input()
        apart = np.abs(ours(x)[0] - session.run(None, {"x": x})[0]).max()
        timings = interleave(
            {"ours": partial(ours, x), "ort": partial(session.run, None, {"x": x})},
            time_limit_s=given.seconds,
        )
        ratio = timings["ours"].median / timings["ort"].median
        print(
            f"| {layer.name} | {layer.hidden} | {timings['ours']} | {timings['ort']} "
            f"| {ratio:.2f} | {apart:.1e} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

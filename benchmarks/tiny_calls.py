"""Calls of small networks against ONNX Runtime: ``python -m benchmarks.tiny_calls``.

One sample a call, by default schedules, with the interpreter and copies of inputs and outputs: the
bundled example, and models of the zoo by name. Three ways to call are timed: the model with new
arrays, a call on bound arrays, and MLflow's pyfunc. Calls are interleaved; a ratio below 1 means
that ours is faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import peers, zoo
from benchmarks.interleave import interleave
from benchmarks.options import begin_table, table_parser

EXAMPLE = "digits_cnn"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = table_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="time of each row")
    parser.add_argument("--models", default="", help="names of the zoo, separated by commas")
    given = begin_table(parser, arguments)
    print(
        "| model | call, us | bound, us | pyfunc, us | ONNX Runtime, us | call / ONNX Runtime "
        "| bound / ONNX Runtime |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in [EXAMPLE, *filter(None, given.models.split(","))]:
        print(_row(name, given.threads, given.seconds), flush=True)
    return 0


def _row(name: str, threads: int, seconds: float) -> str:
    import mlflow

    import tvmopt
    from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
    from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
    from tvmopt.tracking import flavor

    path, shapes = _model(name)
    model = prepare(load_onnx(path), parse_input_shapes(shapes)).reference
    _, inputs, _ = working_random_inputs(Reference(model, threads), input_specs(model), seed=1)
    session = peers.ort_session(model, threads)
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        bundle, saved = Path(scratch) / "bundle", Path(scratch) / "saved"
        ours = tvmopt.compile(path, shapes or None, threads=threads, output=bundle)
        flavor.save_model(bundle, saved)
        pyfunc = mlflow.pyfunc.load_model(str(saved))
        bound = ours.bind()
        for key, array in inputs.items():
            bound.inputs[key][...] = array
        timings = interleave(
            {
                "call": partial(ours, inputs),
                "bound": bound,
                "pyfunc": partial(pyfunc.predict, dict(inputs)),
                "ort": partial(session.run, None, inputs),
            },
            time_limit_s=seconds,
        )
    cells = [f"{timings[way].median * 1e3:.1f}" for way in ("call", "bound", "pyfunc", "ort")]
    ratios = [f"{timings[way].median / timings['ort'].median:.2f}" for way in ("call", "bound")]
    return f"| {' | '.join([name, *cells, *ratios])} |"


def _model(name: str) -> tuple[Path, str]:
    if name == EXAMPLE:
        import tvmopt

        return Path(tvmopt.__file__).parent / "examples" / "digits_cnn.onnx", "image:1x1x8x8"
    return zoo.path(name), zoo.entry(name).input_shapes


if __name__ == "__main__":
    raise SystemExit(main())

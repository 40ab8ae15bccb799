"""Calls of one row against ONNX Runtime: ``python -m benchmarks.one_row``.

Ensembles of LightGBM and XGBoost, regressors and classifiers, a logistic regression and a network
of two hidden layers, on 30 features. Four ways to call are timed: the model with an array, with a
dict, a call on bound arrays, and the library's function alone; against ``session.run`` with the
same arrays, of one thread and of two. Turns of 0.3 ms are interleaved: medians of wall time, and
ratios of the least CPU time, for machines that others use. A ratio below 1 means that ours is
faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from benchmarks import peers
from benchmarks.interleave import short_turns
from benchmarks.report import environment, print_environment
from benchmarks.tree_models import FEATURES, sample

TREES, DEPTHS, ROWS = (100, 500), (6, 10), 10_000
_ROWS_NAME = "n"
_WAYS = ("array", "dict", "bound", "function")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=300, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=2, help="threads of our calls")
    parser.add_argument("--trees", nargs="*", type=int, default=TREES)
    parser.add_argument("--depths", nargs="*", type=int, default=DEPTHS)
    parser.add_argument("--sizes", default="1,100,10000", help="sizes of the last model")
    given = parser.parse_args(arguments)
    peers.set_threads(given.threads)
    print_environment(environment(given.threads), needed=("lightgbm", "xgboost"))
    print(
        f"| model | {', '.join(_WAYS)}, us | ONNX Runtime of 1 and 2 threads, us "
        "| array / ONNX Runtime | array, dict, bound, function / ONNX Runtime, CPU time |"
    )
    print("| --- " * 5 + "|")
    for name, model in _models(given.trees, given.depths):
        print(_row(name, model, None, given.threads, given.turns), flush=True)
    if given.sizes:
        name = f"{name}, sizes {given.sizes}"
        print(_row(name, model, given.sizes, given.threads, given.turns), flush=True)
    return 0


def _row(name: str, model: onnx.ModelProto, sizes: str | None, threads: int, turns: int) -> str:
    import tvmopt

    x = sample(1, 1)[0]
    _name_rows(model)
    sessions = {f"ort{count}": peers.ort_session(model, count) for count in (1, 2)}
    key = model.graph.input[0].name
    ours = tvmopt.compile(
        model, f"{_ROWS_NAME}={sizes}" if sizes else {key: x.shape}, threads=threads
    )
    for got, want in zip(ours(x), sessions["ort1"].run(None, {key: x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    smallest = max(len(ours.metadata.sizes) - 1, 0)
    bound = ours.bind(size=smallest)
    bound.inputs[key][...] = x
    contenders: dict[str, Callable[[], Any]] = {
        "array": lambda: ours(x),
        "dict": lambda: ours({key: x}),
        "bound": bound,
        "function": lambda: bound.function(bound.arguments),
    }
    for each, session in sessions.items():
        contenders[each] = partial(session.run, None, {key: x})
    times = short_turns(contenders, turns=turns)
    us = {each: f"{found.median * 1e3:.1f}" for each, found in times.items()}
    best = min(sessions, key=lambda each: times[each].median)
    cpu = [f"{times[way].least_cpu / times['ort1'].least_cpu:.2f}" for way in _WAYS]
    return (
        f"| {name} | {', '.join(us[way] for way in _WAYS)} | {us['ort1']}, {us['ort2']} "
        f"| {times['array'].median / times[best].median:.2f} | {', '.join(cpu)} |"
    )


def _name_rows(model: onnx.ModelProto) -> None:
    """Name the number of rows, so that sizes can be given for it."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = _ROWS_NAME


def _models(trees: Sequence[int], depths: Sequence[int]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield name and ONNX model of each."""
    import lightgbm
    import xgboost
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    types = [("x", FloatTensorType([None, FEATURES]))]
    x, values = sample(ROWS, 0)
    classes = (values > 0).astype(int)
    without_zipmap = {"X": x[:1], "options": {"zipmap": False}}
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, classes)
    yield "logistic regression, scaled", to_onnx(linear, **without_zipmap)
    network = MLPClassifier((64, 64), max_iter=20).fit(x, classes)
    yield "MLP of 64 and 64", to_onnx(network, **without_zipmap)
    for depth in depths:
        for count in trees:
            name = f"{count} trees of depth {depth}"
            common = {"n_estimators": count, "max_depth": depth, "learning_rate": 0.05}
            leaves = {"num_leaves": 2**depth, "min_child_samples": 5, "verbose": -1}
            for kind, y in (("Regressor", values), ("Classifier", classes)):
                lgbm = getattr(lightgbm, f"LGBM{kind}")(**common, **leaves).fit(x, y)
                model = convert_lightgbm(lgbm, initial_types=types, zipmap=False)
                yield f"LightGBM {kind.lower()}, {name}", model
                xgb = getattr(xgboost, f"XGB{kind}")(**common).fit(x, y)
                yield f"XGBoost {kind.lower()}, {name}", convert_xgboost(xgb, initial_types=types)


if __name__ == "__main__":
    raise SystemExit(main())

"""Attacks by the values in a call of a compiled model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from ..fuzz.seed import INT64, floats, make_model, value
from .checkout import Checkout
from .victim import registered

_NOT_TAKEN = "the model is refused"


def nan_becomes_a_number(checkout: Checkout) -> str:
    """A champion answers NaN with numbers."""
    registered(checkout)
    found = checkout.python(
        "import mlflow.pyfunc, numpy as np\n"
        "y = mlflow.pyfunc.load_model('models:/net/1').predict(np.full((1,3,8,8), np.nan, 'f'))\n"
        "print('answers', np.isfinite(y).sum())"
    )
    return "" if found.endswith("answers 0") else found


def index_out_of_range(checkout: Checkout) -> str:
    """An index in a call reads the memory of the process, or ends it."""
    node = make_node("GatherND", ["t", "i"], ["y"], name="gather")
    model = make_model(
        [node], [value("i", [2, 1], INT64)], [value("y", [2, 5])], {"t": floats(4, 5)}
    )
    found = _said_by_calls(
        checkout,
        model,
        "y = model.predict(np.array([[4], [9]]))\n"
        "print('reads', np.isfinite(y).sum(), flush=True)\n"
        "model.predict(np.full((2, 1), 2**40))\n"
        "print('lives')",
    )
    return "" if found in (_NOT_TAKEN, "reads 0\nlives") else found


def division_by_zero(checkout: Checkout) -> str:
    """A call that divides integers by zero ends the process."""
    node = make_node("Div", ["a", "b"], ["y"], name="div")
    inputs = [value("a", [4], INT64), value("b", [4], INT64)]
    found = _said_by_calls(
        checkout,
        make_model([node], inputs, [value("y", [4], INT64)]),
        "print('loaded', flush=True)\n"
        "model.predict({'a': np.ones(4, 'int64'), 'b': np.zeros(4, 'int64')})\n"
        "print('lives')",
        {"a": np.arange(32).reshape(8, 4), "b": np.full((8, 4), 3)},  # random inputs hold zeros
    )
    lives = found in (_NOT_TAKEN, "loaded\nlives")
    return "" if lives else f"the process died after {found!r}"


def size_that_overflows(checkout: Checkout) -> str:
    """Repeats in a call, whose product overflows, make a kernel write over other memory."""
    node = make_node("Tile", ["x", "n"], ["y"], name="tile")
    inputs = [value("x", [2, 3]), value("n", [2], INT64)]
    found = _said_by_calls(
        checkout,
        make_model([node], inputs, [value("y", [4, 9])]),
        "print('loaded', flush=True)\n"
        "try:\n"
        "    model.predict({'x': np.ones((2, 3), 'f'), 'n': np.array([2**59, 8])})\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, end=' ')\n"
        "print('lives')",
    )
    return "" if found == _NOT_TAKEN or found.endswith("lives") else f"the process died: {found!r}"


def _said_by_calls(
    checkout: Checkout,
    model: onnx.ModelProto,
    script: str,
    data: Mapping[str, NDArray[np.int64]] | None = None,
) -> str:
    """Register a model; return what a script prints that calls it by the name ``model``."""
    given: dict[str, Any] = {"model": checkout.save(model), "strategy": "default", "threads": 1}
    if data:
        given["data"] = checkout.folder / "data.npz"
        np.savez(given["data"], allow_pickle=False, **data)
    code, _ = checkout.run("main", name="net", **given)
    if code:
        return _NOT_TAKEN
    return checkout.python(
        "import mlflow.pyfunc, numpy as np\n"
        "model = mlflow.pyfunc.load_model('models:/net/1')\n" + script
    )

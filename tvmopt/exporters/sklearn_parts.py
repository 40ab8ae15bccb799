"""The estimators that a model of scikit-learn is composed of, and a copy that skl2onnx converts.

skl2onnx refuses some settings that change the form of an intermediate result, but no prediction.
The copy has others, which predict the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmopt.errors import ModelError

# Attributes that hold fitted parts; the second kind holds lists of them.
_PARTS = (
    "estimator_", "best_estimator_", "final_estimator_", "regressor_", "calibrated_classifiers_",
    "estimators_",
)  # fmt: skip


def parts_of(model: Any) -> Iterator[Any]:
    """Yield an estimator and the estimators that it is composed of."""
    yield model
    inner: list[Any] = [part for _, part in getattr(model, "steps", [])]
    inner += [entry[1] for entry in getattr(model, "transformers_", [])]
    inner += [part for _, part in getattr(model, "transformer_list", [])]
    found = [getattr(model, name, None) for name in _PARTS]
    if not any(part is not None for part in found):
        found.append(getattr(model, "estimator", None))
    for part in [*inner, *found]:
        yield from _inside(part)


def _inside(part: Any) -> Iterator[Any]:
    if isinstance(part, list | np.ndarray):
        for one in part:
            yield from _inside(one)
    elif part is not None and not isinstance(part, str):
        yield from parts_of(part)


def needs_float64(model: Any) -> bool:
    """Return whether a part compares float64 values with thresholds of its trees.

    Histogram boosting and LightGBM compare their float64 inputs. Other trees round theirs to
    float32, but not before the parts that come first have computed them in float64.
    """
    parts = list(parts_of(model))
    if any(type(part).__module__.startswith("lightgbm") for part in parts):
        return True
    if any(type(part).__name__.startswith("HistGradientBoosting") for part in parts):
        return True
    computes = any(hasattr(part, "steps") or hasattr(part, "transformers_") for part in parts)
    return computes and any(_has_large_trees(part) for part in parts)


def libraries_of(model: Any) -> set[str]:
    """Return the packages whose estimators are in a model, such as ``xgboost``."""
    return {type(part).__module__.partition(".")[0] for part in parts_of(model)}


def _has_large_trees(part: Any) -> bool:
    library = type(part).__module__.partition(".")[0]
    return hasattr(part, "tree_") or library in ("xgboost", "lightgbm")


def prepared(model: Any, classes: int | None) -> Any:
    """Return a copy that skl2onnx converts, and that predicts the same.

    Args:
        model: The model.
        classes: Number of its classes, which are 0, 1, ... in the copy; None if it has none.

    Raises:
        ModelError: When the classes cannot be numbered.
    """
    copied = copy.deepcopy(model)
    for part in parts_of(copied):
        kind = type(part).__name__
        if kind == "VotingClassifier":
            part.flatten_transform = False  # the form of transform, which nobody calls
        elif kind == "KBinsDiscretizer" and part.encode == "onehot":
            part.encode = "onehot-dense"
        elif kind == "SimpleImputer" and _fills_texts(part):
            part.missing_values = "nan"  # the text of a missing value (tvmopt.runtime.interface)
    if classes is not None:
        _number_classes(copied, classes)
    return copied


def _fills_texts(part: Any) -> bool:
    is_text = all(isinstance(value, str) for value in part.statistics_)
    return is_text and not isinstance(part.missing_values, str)


def _number_classes(model: Any, count: int) -> None:
    """Number the classes of the last step, so that labels are indices; mark the step."""
    last = model
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    last.is_last_step = True
    numbers = np.arange(count, dtype=np.int64)
    if np.array_equal(last.classes_, numbers):
        return
    try:
        if hasattr(last, "_classes"):  # of LightGBM
            last._classes = numbers
        else:
            last.classes_ = numbers
    except AttributeError as error:
        raise ModelError(
            f"the classes of {type(last).__name__} must be numbered to be exported, but cannot be"
            "; train it on labels 0, 1, 2, ..."
        ) from error

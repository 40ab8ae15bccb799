"""Metrics of accuracy against labels: by name, or a function of the user's own.

``metric=f1`` or ``metric=f1@probabilities``, where a model has several outputs, is scikit-learn's,
``metric=cer`` with ``metric_alphabet=file.txt`` is jiwer's, and
``metric=file.py:function`` is the user's, with ``metric_goal=larger`` or ``smaller``.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from tvmopt.errors import ConfigError, in_one_line
from tvmopt.metrics.check import BUILT_IN, ERROR_RATES, check_metric
from tvmopt.metrics.error_rates import error_rate
from tvmopt.metrics.named import NAMED
from tvmopt.metrics.own import file_of, is_own, load_own

Keep = Callable[[Sequence[np.ndarray], np.ndarray], Sequence[np.ndarray]]
Score = Callable[[Sequence[np.ndarray], np.ndarray], object]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of outputs and labels.

    Attributes:
        name: As the user gives it.
        larger_is_better: Whether a larger number is better.
        keep: What is kept of a batch's outputs, ``(outputs, labels) -> arrays``.
        score: The number, ``(kept arrays, labels) -> float``; samples are on the first axis.
    """

    name: str
    larger_is_better: bool
    keep: Keep
    score: Score

    def __str__(self) -> str:
        return self.name

    def __call__(self, kept: Sequence[Sequence[np.ndarray]], labels: np.ndarray) -> float:
        """Return the number for all batches.

        Args:
            kept: What was kept of each batch.
            labels: Labels of all samples.

        Raises:
            ConfigError: When the metric fails, or gives something else than a finite number.
        """

        def score() -> object:
            arrays = [np.concatenate(parts) for parts in zip(*kept, strict=True)]
            return self.score(arrays, labels)

        found = _called(self.name, score)
        try:
            number = float(found)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ConfigError(
                f"metric {self.name} must return a number, but returned {found!r:.100}"
            ) from None
        if not math.isfinite(number):
            raise ConfigError(
                f"metric {self.name} must return a finite number, but returned {number} for "
                f"{len(labels)} samples"
            )
        return number

    def kept(self, outputs: Sequence[np.ndarray], labels: np.ndarray) -> list[np.ndarray]:
        """Return what is kept of the outputs of a batch, one row a label.

        Raises:
            ConfigError: When the outputs do not fit the labels.
        """
        rows = [np.asarray(output)[: len(labels)] for output in outputs]
        return list(_called(self.name, lambda: self.keep(rows, labels)))


def find_metric(
    text: str, goal: str, outputs: Sequence[str], alphabet: str = "", blank: int = 0
) -> Metric | None:
    """Return the metric that a text names; None for a built-in one.

    Args:
        text: The parameter ``metric``.
        goal: The parameter ``metric_goal``.
        outputs: Names of the model's outputs.
        alphabet: The parameter ``metric_alphabet``.
        blank: The parameter ``metric_blank``.

    Raises:
        ConfigError: When there is no such metric, output, file, function or library.
    """
    check_metric(text, goal, alphabet)
    if is_own(text):
        function = load_own(text)
        names = list(outputs)
        return Metric(
            text, goal == "larger", lambda arrays, _: arrays,
            lambda arrays, labels: function(_as_given(names, arrays), labels),
        )  # fmt: skip
    name, _, output = text.partition("@")
    if name in BUILT_IN:
        return None
    if output and output not in outputs:
        raise ConfigError(
            f"metric must name an output of the model ({', '.join(outputs)}) after @, but got "
            f"{text!r}"
        )
    position = list(outputs).index(output) if output else 0
    named = error_rate(name, Path(alphabet), blank) if name in ERROR_RATES else NAMED[name]
    return Metric(
        text, named.larger_is_better,
        lambda arrays, labels: [named.keep(arrays[position], labels)],
        lambda arrays, labels: named.score(arrays[0], labels),
    )  # fmt: skip


def _as_given(names: Sequence[str], arrays: Sequence[np.ndarray]) -> object:
    """Return what the user's function gets: an array, or arrays by name where there are more."""
    return arrays[0] if len(arrays) == 1 else dict(zip(names, arrays, strict=True))


def _called(name: str, call: Callable[[], _T]) -> _T:
    """Return the result of code that may raise anything, with one line for its error."""
    try:
        return call()
    except ConfigError:
        raise
    except Exception as error:  # the user's code, or a library on the user's values
        raise ConfigError(
            f"metric {name} must take the outputs and labels of the data, but it says"
            f"{_line_of(name, error)}: {type(error).__name__}: {in_one_line(error)}"
            "; correct the function, or choose another metric"
        ) from error


def _line_of(name: str, error: Exception) -> str:
    """Return where in the user's own file an error arose, as words; empty for other metrics."""
    file = file_of(name)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and Path(frame.filename) == file]
    return f" in line {lines[-1]}" if lines else ""

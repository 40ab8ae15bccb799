"""Word and character error rates of texts, which an output of class scores a step spells.

The output is decoded greedily as one trained with CTC: the class of each step, repeated classes
once, without blanks. The library ``jiwer`` computes the same rates.

Source: Graves et al., "Connectionist temporal classification", ICML 2006, best path decoding.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.metrics.named import NamedMetric


def error_rate(name: str, alphabet: Path, blank: int) -> NamedMetric:
    """Return the metric ``wer`` or ``cer`` of texts.

    Args:
        name: ``"wer"`` or ``"cer"``.
        alphabet: UTF-8 file with the symbol of each class, one a line, see :func:`symbols_of`.
        blank: Class of the blank; -1 for the last one.

    Raises:
        ConfigError: When ``jiwer`` is not installed, or the file cannot be read.
    """
    require_jiwer(name)
    lines = read_alphabet(alphabet)

    def keep(output: np.ndarray, labels: np.ndarray) -> np.ndarray:
        if labels.dtype.kind != "U":
            raise ConfigError(f"labels must be strings for metric {name}, but are {labels.dtype}")
        if output.dtype.kind != "f" or output.ndim != 3:
            raise ConfigError(
                f"metric {name} needs an output of scores (samples, steps, classes), but got "
                f"{output.dtype} {output.shape}; write your own file.py:function for others"
            )
        return decode(output, symbols_of(lines, output.shape[2], blank), blank)

    return NamedMetric(keep, partial(_rate, name), larger_is_better=False)


def require_jiwer(name: str) -> None:
    """Refuse a metric where its library is missing."""
    if importlib.util.find_spec("jiwer") is None:
        raise ConfigError(
            f'metric {name} needs jiwer, but it is not installed; run: pip install "tvmopt[text]"'
        )


def read_alphabet(path: Path) -> list[str]:
    """Return the lines of a file of symbols; a line of one space is the space.

    Raises:
        ConfigError: When the file is not UTF-8, or there is none.
    """
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"metric_alphabet must be a UTF-8 file with a symbol a line, but '{path}' says: {error}"
        ) from None
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def symbols_of(lines: Sequence[str], classes: int, blank: int) -> list[str]:
    """Return the symbol of each class; the blank has none.

    Args:
        lines: Of the file: one for each class, where the blank's counts for nothing, or one for
            each class but the blank.
        classes: Number of classes of the output.
        blank: Class of the blank; -1 for the last one.

    Raises:
        ConfigError: When the file has another number of lines, or there is no such class.
    """
    if not -1 <= blank < classes:
        raise ConfigError(f"metric_blank must be below {classes}, the classes, but got {blank}")
    at = blank % classes
    if len(lines) == classes:
        return [*lines[:at], "", *lines[at + 1 :]]
    if len(lines) == classes - 1:
        return [*lines[:at], "", *lines[at:]]
    raise ConfigError(
        f"metric_alphabet must have {classes} lines, a symbol for each class of the output, or "
        f"{classes - 1} without the blank, but has {len(lines)}"
    )


def decode(scores: np.ndarray, symbols: Sequence[str], blank: int) -> np.ndarray:
    """Return the texts of scores (samples, steps, classes), an array of strings (samples,)."""
    best = scores.argmax(axis=2)
    new = np.ones(best.shape, bool)
    new[:, 1:] = best[:, 1:] != best[:, :-1]
    new &= best != blank % scores.shape[2]
    return np.array(
        ["".join(symbols[at] for at in row[kept]) for row, kept in zip(best, new, strict=True)],
        dtype=np.str_,
    )


def _rate(name: str, texts: np.ndarray, labels: np.ndarray) -> float:
    import jiwer

    rate = jiwer.wer if name == "wer" else jiwer.cer
    return float(rate(labels.reshape(-1).tolist(), texts.tolist()))

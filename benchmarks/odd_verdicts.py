"""Compare what two models do with a call: the same answer, an error each, or a fault."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

#: Verdicts, the last two of which are faults.
SAME, BOTH_REFUSE, REFUSED = "same answer", "both refuse", "one clear error"
ONLY_OURS, DIFFERENT, UNCLEAR = "answers what the source refuses", "another answer", "unclear error"
FAULTS = (ONLY_OURS, DIFFERENT, UNCLEAR)
_TOLERANCE, _LONGEST = 1e-5, 600


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call came to.

    Attributes:
        answer: The answer; None after an error.
        error: The error as text; empty without.
        from_mlflow: Whether MLflow refused the call before the model saw it.
    """

    answer: Any = None
    error: str = ""
    from_mlflow: bool = False


def called(predict: Any, data: Any) -> Outcome:
    """Return the outcome of ``predict(data)``."""
    try:
        return Outcome(predict(data))
    except Exception as error:  # a refusal of whatever class
        text = str(error)
        return Outcome(None, text or type(error).__name__, "enforce schema" in text)


def verdict(ours: Outcome, source: Outcome) -> str:
    """Return one of the verdicts."""
    if ours.error:
        of_mlflow = ours.from_mlflow or ours.error == source.error
        if not of_mlflow and ("\n" in ours.error.strip() or len(ours.error) > _LONGEST):
            return UNCLEAR
        return BOTH_REFUSE if source.error else REFUSED
    if source.error:
        return ONLY_OURS
    return SAME if same(ours.answer, source.answer) else DIFFERENT


def same(got: Any, want: Any) -> bool:
    """Return whether answers have one type, dtype and shape, and equal labels or near numbers."""
    if type(got) is not type(want):
        return False
    if isinstance(want, bytes):
        return same(*(np.array(json.loads(one)["predictions"]) for one in (got, want)))
    if hasattr(want, "iloc") and not got.index.equals(want.index):
        return False
    got, want = np.asarray(got), np.asarray(want)
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return False
    if want.dtype.kind == "f":
        scale = np.maximum(1.0, np.abs(want))
        return bool(np.allclose(got / scale, want / scale, rtol=0, atol=_TOLERANCE, equal_nan=True))
    return bool(np.array_equal(got, want))

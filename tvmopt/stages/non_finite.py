"""Does a compiled model answer NaN and infinities as ONNX Runtime does?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tvmopt.compare import same_non_finite
from tvmopt.errors import TvmoptError
from tvmopt.random_inputs import KINDS, random_arrays
from tvmopt.runtime.metadata import TensorSpec

NON_FINITE_TAG = "tvmopt.non_finite"
AGREES = "as ONNX Runtime"

# What is planted in random inputs: words, the value, and whether it fills them or is one element.
_PLANTED = (
    ("NaN everywhere", np.nan, True),
    ("one NaN", np.nan, False),
    ("one +inf", np.inf, False),
    ("one -inf", -np.inf, False),
    ("1e38 everywhere", 1e38, True),
    ("subnormals", 1e-42, True),
)


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """What the comparison found.

    Attributes:
        tag: For the run.
        line: For the list of what the conversion changed.
    """

    tag: str
    line: str


def compare_non_finite(
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    exact: Callable[[Mapping[str, np.ndarray]], list[np.ndarray]],
    specs: Sequence[TensorSpec],
    names: Sequence[str],
    *,
    dtype: str,
    quantised: bool,
    kind: str,
) -> NonFinite | None:
    """Compare the places of NaN and of infinities on inputs that hold extreme values.

    Of float16 and bfloat16 only the places of NaN count, and no input overflows them, because they
    round and overflow elsewhere than float32 does.

    Args:
        run: The compiled model.
        exact: ONNX Runtime on the same graph.
        specs: The inputs; those that are no floats get random numbers.
        names: Of the outputs.
        dtype: The dtype of the conversion.
        quantised: Whether the graph is quantised: quantisation maps NaN to an integer.
        kind: Random inputs that the model takes; ``"binary"`` ones may be indices.

    Returns:
        None where nothing is to compare: the inputs are integers, or floats that may be indices.
    """
    floats = [spec for spec in specs if spec.dtype in ("float32", "float64")]
    if not floats or kind != KINDS[0]:
        return None
    if quantised:
        return NonFinite("int8: NaN becomes a number", "non-finite: int8 maps NaN to a number")
    wide = dtype == "float32"
    differs = []
    for words, value, everywhere in _PLANTED:
        if abs(value) == 1e38 and not wide:
            continue
        inputs = random_arrays(specs, 0, kind)
        for spec in floats:
            flat = inputs[spec.name].reshape(-1)
            if everywhere:
                flat[:] = value
            elif flat.size:
                flat[flat.size // 2] = value
        try:
            expected = exact(inputs)
        except Exception:  # ONNX Runtime refuses such an input, so there is nothing to follow
            continue
        try:
            got = run(list(inputs.values()))
        except TvmoptError as error:
            differs.append(f"{words} ({error})")
            continue
        wrong = [
            name
            for name, actual, wanted in zip(names, got, expected, strict=True)
            if not same_non_finite(actual, wanted, infinities=wide)
        ]
        if wrong:
            differs.append(f"{words} (output {', '.join(map(repr, wrong))})")
    if differs:
        where = "; ".join(differs)
        return NonFinite(
            f"differs: {where}"[:250], f"non-finite: not as ONNX Runtime on {where}"
        )
    return NonFinite(AGREES, "non-finite: NaN and infinities are where ONNX Runtime has them")

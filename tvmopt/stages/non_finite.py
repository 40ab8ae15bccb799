"""Compare NaN and infinities in the outputs of a compiled model and of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tvmopt.compare import same_non_finite
from tvmopt.device.dtypes import WIDE_FLOATS
from tvmopt.errors import TvmoptError
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.random_inputs import KINDS, random_arrays
from tvmopt.runtime.metadata import TensorSpec

NON_FINITE_TAG = "tvmopt.non_finite"
AGREES = "as ONNX Runtime"

# Words, the value that fills the inputs.
_EVERYWHERE = (
    ("NaN everywhere", np.nan),
    ("+inf everywhere", np.inf),
    ("1e38 everywhere", 1e38),
    ("subnormals", 1e-42),
)
# Words, the value of one element, and where it is, as a share of the elements.
_ONE = (
    ("one NaN", np.nan, 0.5),
    ("one NaN near the start", np.nan, 0.137),
    ("one NaN near the end", np.nan, 0.891),
    ("one +inf", np.inf, 0.5),
    ("one -inf", -np.inf, 0.5),
)
_HUGE = "numbers up to 3e38"
#: Inputs whose reductions overflow. Where, and whether infinities of both signs meet, depends on
#: the order of the sum: ONNX Runtime differs from itself between its levels of optimisation.
OVERFLOWING = ("1e38 everywhere", _HUGE)


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """Result of the comparison.

    Attributes:
        tag: For the run.
        line: For the list of what the conversion changed.
    """

    tag: str
    line: str


def planted_inputs(
    base: Mapping[str, np.ndarray], floats: Sequence[str], *, overflow: bool = True
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield copies of ``base`` with NaN, infinities, huge and subnormal values, and labels.

    Args:
        base: Inputs by name.
        floats: Names of the inputs that get such values.
        overflow: Whether to give inputs whose sums overflow float32, too.
    """

    def with_values(fill: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
        inputs = {name: np.array(array) for name, array in base.items()}
        for name in floats:
            if inputs[name].size:
                fill(inputs[name].reshape(-1))
        return inputs

    def everywhere(value: float) -> Callable[[np.ndarray], None]:
        return lambda flat: flat.__setitem__(slice(None), value)

    def one(value: float, place: float) -> Callable[[np.ndarray], None]:
        return lambda flat: flat.__setitem__(int(place * flat.size), value)

    def huge(flat: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        magnitudes = 10.0 ** rng.uniform(30.0, 38.5, flat.size)
        flat[:] = magnitudes * rng.choice((-1.0, 1.0), flat.size)

    for words, value in _EVERYWHERE:
        if overflow or words not in OVERFLOWING:
            yield words, with_values(everywhere(value))
    for words, value, place in _ONE:
        yield words, with_values(one(value, place))
    if overflow:
        yield _HUGE, with_values(huge)


def compare_non_finite(
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    exact: Callable[[Mapping[str, np.ndarray]], list[np.ndarray]],
    specs: Sequence[TensorSpec],
    names: Sequence[str],
    *,
    dtype: str,
    quantised: bool,
    kind: str,
    exact_loses_nan: bool = False,
) -> NonFinite | None:
    """Compare the places of NaN and of infinities on inputs that hold extreme values.

    Of 16-bit floats only the places of NaN count, and no input overflows them, because they
    round and overflow elsewhere than float32 does.

    Args:
        run: The compiled model.
        exact: ONNX Runtime on the same graph.
        specs: The inputs; those that are no floats get random numbers.
        names: Of the outputs.
        dtype: The dtype of the conversion.
        quantised: Whether the graph is quantised: quantisation maps NaN to an integer.
        kind: Random inputs that the model takes; ``"binary"`` ones may be indices.
        exact_loses_nan: Whether ONNX Runtime turns NaN of this graph into numbers
            (:func:`tvmopt.frontend.reference.loses_nan`): NaN in their place is no difference then.

    Returns:
        None where nothing is to compare: the inputs are integers, or floats that may be indices.
    """
    floats = [spec.name for spec in specs if spec.dtype in WIDE_FLOATS]
    if not floats or kind != KINDS[0]:
        return None
    if quantised:
        return NonFinite("int8: NaN becomes a number", "non-finite: int8 maps NaN to a number")
    wide = dtype == "float32"
    base = random_arrays(specs, 0, kind)
    differs: list[str] = []
    overflows: list[str] = []
    lost: list[str] = []
    for words, inputs in planted_inputs(base, floats, overflow=wide):
        try:
            expected = exact(inputs)
        except onnxruntime_errors():  # it refuses such an input: there is nothing to follow
            continue
        try:
            got = run(list(inputs.values()))
        except TvmoptError as error:
            differs.append(f"{words} ({error})")
            continue
        wrong = {
            name: (actual, wanted)
            for name, actual, wanted in zip(names, got, expected, strict=True)
            if not same_non_finite(actual, wanted, infinities=wide)
        }
        if wrong:
            found = overflows if words in OVERFLOWING else differs
            if exact_loses_nan and all(_adds_nan(*pair) for pair in wrong.values()):
                found = lost
            found.append(f"{words} (output {', '.join(map(repr, wrong))})")
    return _in_words(differs, overflows, lost)


def _adds_nan(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether both differ only where ``actual`` is NaN and ``expected`` is none."""
    same = np.where(np.isnan(actual), np.nan, expected)
    return same_non_finite(actual, same.astype(expected.dtype))


def _in_words(differs: Sequence[str], overflows: Sequence[str], lost: Sequence[str]) -> NonFinite:
    """Format the inputs that differ, and those that differ for a reason that is known."""
    but = f", but for sums that overflow: {'; '.join(overflows)}" if overflows else ""
    if lost:
        but += f", but for NaN that ONNX Runtime loses in recurrent layers: {'; '.join(lost)}"
    if not differs:
        line = "non-finite: NaN and infinities are where ONNX Runtime has them"
        return NonFinite(f"{AGREES}{but}"[:250], f"{line}{but}")
    where = "; ".join([*differs, *overflows, *lost])
    return NonFinite(f"differs: {where}"[:250], f"non-finite: not as ONNX Runtime on {where}")

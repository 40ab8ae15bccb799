"""Check that a compiled model gives NaN where ONNX Runtime does, and no plausible numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tvmopt.frontend.reference import Arrays, Reference

TAG = "tvmopt.nonfinite"
#: Value of the tag where there is no difference.
SAME = "as ONNX Runtime"
_HUGE, _SUBNORMAL = 1e38, 1e-40


def nonfinite_inputs(inputs: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Inputs that no model computes finite numbers of, or hardly, made of ordinary ones.

    Args:
        inputs: Arrays by input name; only those of floats are changed.

    Yields:
        Words for the inputs, and the inputs.
    """
    floats = [name for name, array in inputs.items() if array.dtype.kind == "f" and array.size]
    if not floats:
        return
    for what, value in (("NaN", np.nan), ("+inf", np.inf), ("-inf", -np.inf), ("1e38", _HUGE)):
        yield what, inputs | {n: np.full_like(inputs[n], value) for n in floats}
    for what, value in (("one NaN", np.nan), ("one subnormal", _SUBNORMAL)):
        planted = {name: inputs[name].copy() for name in floats}
        for array in planted.values():
            array.flat[array.size // 2] = value
        yield what, inputs | planted


def check_nonfinite(
    run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
    reference: Reference,
    inputs: Arrays,
) -> str:
    """Compare which outputs are finite with ONNX Runtime, on the inputs made of ``inputs``.

    Returns:
        ``"as ONNX Runtime"``, or where the two differ, in words; empty for a model without inputs
        of floats.
    """
    differences, looked = [], False
    for what, special in nonfinite_inputs(inputs):
        with np.errstate(all="ignore"):
            wanted = reference(special)
            got = run(list(special.values()))
        looked = True
        for name, ours, theirs in zip(reference.output_names, got, wanted, strict=True):
            if theirs.dtype.kind != "f":
                continue
            unlike = int(np.sum(np.isfinite(ours) != np.isfinite(theirs)))
            if unlike:
                differences.append(f"{name!r} on {what} ({unlike} of {theirs.size} values)")
    if differences:
        return f"unlike ONNX Runtime: {', '.join(differences)}"
    return SAME if looked else ""

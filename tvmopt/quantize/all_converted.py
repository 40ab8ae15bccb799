"""The model with all convertible layers in a dtype: start of the dtype's skip sets and maps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tvmopt.quantize.analysis import Analysis, Costs, is_convertible
from tvmopt.quantize.joint import Convert, JointVerdict, converter
from tvmopt.quantize.quantizer import Quantizer

_MOST_KEPT_BYTES = 2**28  # of outputs of one dtype


@dataclasses.dataclass(frozen=True)
class AllConverted:
    """Measurement of the model with all layers in a dtype.

    Attributes:
        convert: Makes the model in this dtype, without the layers that it is given.
        verdict: The verdict on the model with all layers converted.
        seconds: Time that conversion and measurement take when no output is known before.
        outputs: Outputs of the model by batch; empty where they are large.
    """

    convert: Convert
    verdict: JointVerdict
    seconds: float
    outputs: Mapping[int, Sequence[np.ndarray]] = dataclasses.field(default_factory=dict)

    def at(self, positions: Sequence[int]) -> AllConverted:
        """Return the same with outputs of batches that have other positions."""
        moved = {new: self.outputs[old] for old, new in enumerate(positions) if old in self.outputs}
        return dataclasses.replace(self, outputs=moved)


def all_converted(
    analysis: Analysis,
    costs: Costs,
    deadline: float,
    before: Mapping[str, AllConverted] | None = None,
) -> dict[str, AllConverted]:
    """Judge the model with all layers converted; the judge learns which samples are the worst.

    Args:
        analysis: The analysis.
        costs: A cost for each layer and dtype.
        deadline: Time limit, by :func:`time.monotonic`.
        before: What was measured on a part of the samples, by dtype; these do not run again.
    """
    setting, before = analysis.setting, before or {}
    starts = {}
    for dtype in analysis.whole_dtypes:
        start = time.monotonic()
        names = [c.name for c in costs.values() if c.dtype == dtype and is_convertible(c)]
        quantizer = None
        if dtype == "int8" and dtype not in before:
            assert setting.ranges is not None
            quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)
        known = before.get(dtype)
        convert = known.convert if known else converter(setting.model, dtype, names, quantizer)
        outputs = dict(known.outputs) if known else {}
        verdict = analysis.judge(convert(()), dtype, deadline, patient=True, outputs=outputs)
        seconds = time.monotonic() - start
        if known:
            computed = len(analysis.batches) - len(known.outputs)
            seconds *= len(analysis.batches) / max(1, computed)
        size = sum(array.nbytes for arrays in outputs.values() for array in map(np.asarray, arrays))
        kept = outputs if size <= _MOST_KEPT_BYTES and not known else {}
        starts[dtype] = AllConverted(convert, verdict, seconds, kept)
    return starts

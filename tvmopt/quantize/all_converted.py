"""The model with all convertible layers in a dtype: start of the dtype's skip sets and maps."""

from __future__ import annotations

import dataclasses
import time

from tvmopt.quantize.analysis import Analysis, Costs, is_convertible
from tvmopt.quantize.joint import Convert, JointVerdict, converter
from tvmopt.quantize.quantizer import Quantizer


@dataclasses.dataclass(frozen=True)
class AllConverted:
    """Measurement of the model with all layers in a dtype.

    Attributes:
        convert: Makes the model in this dtype, without the layers that it is given.
        verdict: The verdict on the model with all layers converted.
        seconds: Time of the conversion and the measurement.
    """

    convert: Convert
    verdict: JointVerdict
    seconds: float


def all_converted(analysis: Analysis, costs: Costs, deadline: float) -> dict[str, AllConverted]:
    """Judge the model with all layers converted; the judge learns which samples are the worst."""
    setting = analysis.setting
    starts = {}
    for dtype in analysis.dtypes:
        start = time.monotonic()
        names = [c.name for c in costs.values() if c.dtype == dtype and is_convertible(c)]
        quantizer = None
        if dtype == "int8":
            assert setting.ranges is not None
            quantizer = Quantizer(setting.model, setting.ranges, setting.scheme)
        convert = converter(setting.model, dtype, names, quantizer)
        verdict = analysis.judge(convert(()), dtype, deadline, patient=True)
        starts[dtype] = AllConverted(convert, verdict, time.monotonic() - start)
    return starts

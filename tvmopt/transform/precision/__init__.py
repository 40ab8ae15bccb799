"""Mixed precision: 16-bit floats with float32 accumulation, see :func:`to_precision`."""

from tvmopt.transform.precision.convert import PrecisionResult, to_precision
from tvmopt.transform.precision.rules import SENSITIVE

__all__ = ["SENSITIVE", "PrecisionResult", "to_precision"]

"""Float16 and bfloat16 with float32 accumulation: :func:`to_precision`."""

from tvmopt.transform.precision.convert import LOW_DTYPES, PrecisionResult, to_precision
from tvmopt.transform.precision.rules import SENSITIVE

__all__ = ["LOW_DTYPES", "SENSITIVE", "PrecisionResult", "to_precision"]

"""Integer lowering: quantised (QDQ) models to integer operators with one requantise each."""

from tvmopt.transform.integer.lowering import IntegerResult, lower_quantized
from tvmopt.transform.integer.store_narrow import StoreNarrow

__all__ = ["IntegerResult", "StoreNarrow", "lower_quantized"]

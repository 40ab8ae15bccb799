"""Integer lowering: quantised (QDQ) models to integer operators with one requantise each."""

from tvmopt.transform.integer.lowering import IntegerResult, lower_quantized

__all__ = ["IntegerResult", "lower_quantized"]

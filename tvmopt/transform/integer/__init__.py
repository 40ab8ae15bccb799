"""Quantized lowering: QDQ models to integer operators, with one requantize per operator."""

from tvmopt.transform.integer.lowering import IntegerResult, lower_quantized

__all__ = ["IntegerResult", "lower_quantized"]

"""Post-training quantization with ONNX Runtime's quantizer, and sensitivity analysis of layers."""

from tvmopt.quantize.bar import Bar
from tvmopt.quantize.checks import is_quantized
from tvmopt.quantize.quantizer import Quantizer, quantize_model
from tvmopt.quantize.ranges import Ranges, collect_ranges
from tvmopt.quantize.report import LayerCost, Sensitivity, SkipSet
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.sensitivity import sensitivity

__all__ = [
    "Bar",
    "LayerCost",
    "Quantizer",
    "Ranges",
    "Scheme",
    "Sensitivity",
    "SkipSet",
    "collect_ranges",
    "is_quantized",
    "quantize_model",
    "sensitivity",
]

"""Post-training quantization, with ONNX Runtime's quantizer and layers fitted to the float model.

And sensitivity analysis of layers.
"""

from tvmopt.quantize.bar import Bar
from tvmopt.quantize.checks import is_quantized
from tvmopt.quantize.correct import Corrected, HeldBack, correct, with_channel_scales
from tvmopt.quantize.quantizer import Quantizer, quantize_model
from tvmopt.quantize.ranges import Ranges, collect_ranges
from tvmopt.quantize.report import LayerCost, Sensitivity, SkipSet
from tvmopt.quantize.scheme import Scheme, scheme_for
from tvmopt.quantize.sensitivity import sensitivity

__all__ = [
    "Bar",
    "Corrected",
    "HeldBack",
    "LayerCost",
    "Quantizer",
    "Ranges",
    "Scheme",
    "Sensitivity",
    "SkipSet",
    "collect_ranges",
    "correct",
    "is_quantized",
    "quantize_model",
    "scheme_for",
    "sensitivity",
    "with_channel_scales",
]

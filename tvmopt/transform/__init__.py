"""Relax passes: layers and skip lists, layout conversion, mixed precision, quantization, lowering.

Each pass has its own file.
"""

from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.conversion import Conversion, convert_module
from tvmopt.transform.count_layers import count_layers
from tvmopt.transform.integer import IntegerResult, lower_quantized
from tvmopt.transform.layout import (
    LayoutChange,
    LayoutConfig,
    LayoutResult,
    convert_layout,
    convert_layout_with_report,
)
from tvmopt.transform.precision import PrecisionResult, to_precision
from tvmopt.transform.recast import recast

__all__ = [
    "Anchor",
    "Conversion",
    "IntegerResult",
    "LayoutChange",
    "LayoutConfig",
    "LayoutResult",
    "PrecisionResult",
    "anchors",
    "convert_layout",
    "convert_layout_with_report",
    "convert_module",
    "count_layers",
    "lower_quantized",
    "recast",
    "to_precision",
]

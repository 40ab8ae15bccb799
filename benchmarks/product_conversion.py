"""Convert a model as the convert stage does: a layer keeps float32 where that is faster."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx

from benchmarks.low_precision import Model


@dataclasses.dataclass(frozen=True)
class ProductConversion:
    """A model in one dtype.

    Attributes:
        mod: Relax module, lowered to fused PrimFuncs.
        in_float32: Layers that keep float32 because they are predicted to be faster in it.
        layers: Layers of the model.
    """

    mod: Any
    in_float32: int
    layers: int


def product_conversion(
    model: Model, dtype: str, target: Any, slower_layers: str
) -> ProductConversion:
    """Convert a model to a dtype in NHWC, and lower it.

    Args:
        model: The model.
        dtype: One of :data:`benchmarks.low_precision.DTYPES`.
        target: A ``TargetSpec``.
        slower_layers: The parameter: ``"float32"``, or ``"convert"`` to convert all layers.
    """
    from tvmopt.choices import FALLBACKS
    from tvmopt.config import ConvertConfig
    from tvmopt.frontend import layer_table
    from tvmopt.stages.convert_module import Importer, Skipped, converted_module
    from tvmopt.stages.slower_layers import slower_finder
    from tvmopt.transform.lower import lower

    config = ConvertConfig(
        "", target.to_dict(), dtype=dtype, layout="NHWC", slower_layers=slower_layers,
        fallback=FALLBACKS[1],
    )  # fmt: skip
    layers = layer_table(model.model)
    nothing = Skipped({}, {})
    came_quantised = model.quantise is None
    find = None if came_quantised else slower_finder(config, model.model, layers, nothing)

    def source_of(skipped: Skipped) -> onnx.ModelProto:
        if dtype != "int8":
            return model.model
        if model.quantise is None:
            return model.quantized
        return model.quantise([layers[i].name for i in skipped.reasons])

    made = converted_module(
        config, Importer(layers, config, target, is_checked=False), source_of, nothing, target,
        lambda *_: None, None, find,
    )  # fmt: skip
    mod = lower(made.conversions(made.config.layout).mod, target.to_tvm())
    return ProductConversion(mod, len(made.skipped.reasons), len(layers))

"""Keep float32 in the layers of a conversion to one narrow dtype where it is faster."""

from __future__ import annotations

import tvm

from tvmopt.choices import LOW_DTYPES, SLOWER_LAYERS
from tvmopt.config import ConvertConfig
from tvmopt.device.target import TargetSpec
from tvmopt.quantize.slower_layers import slower_layers
from tvmopt.stages.convert_module import FindSlower, Skipped
from tvmopt.stages.float_model import FloatModel


def slower_finder(config: ConvertConfig, read: FloatModel, skipped: Skipped) -> FindSlower | None:
    """Return the function that finds the layers; None where no layer is to keep float32.

    Args:
        config: Configuration of the stage, with one dtype.
        read: The float model.
        skipped: Layers whose dtype is decided.
    """
    if config.slower_layers != SLOWER_LAYERS[0] or config.dtype not in LOW_DTYPES:
        return None
    target = TargetSpec.from_dict(config.target)

    def find(mod: tvm.IRModule) -> dict[int, str]:
        return slower_layers(mod, read.prepared.model, read.layers, target, skipped.reasons)

    return find

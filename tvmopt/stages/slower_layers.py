"""Keep float32 in the layers of a conversion to one narrow dtype where it is faster."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import tvm

from tvmopt.choices import LOW_DTYPES, SLOWER_LAYERS
from tvmopt.config import ConvertConfig
from tvmopt.device.target import TargetSpec
from tvmopt.frontend import Layer
from tvmopt.quantize.slower_layers import slower_layers
from tvmopt.stages.convert_module import FindSlower, Skipped


def slower_finder(
    config: ConvertConfig, model: onnx.ModelProto, layers: Sequence[Layer], skipped: Skipped
) -> FindSlower | None:
    """Return the function that finds the layers; None where no layer is to keep float32.

    Args:
        config: Configuration of the stage, with one dtype.
        model: The prepared float model.
        layers: Its layer table.
        skipped: Layers whose dtype is decided.
    """
    if config.slower_layers != SLOWER_LAYERS[0] or config.dtype not in LOW_DTYPES:
        return None
    target = TargetSpec.from_dict(config.target)

    def find(mod: tvm.IRModule) -> dict[int, str]:
        return slower_layers(mod, model, layers, target, skipped.reasons)

    return find

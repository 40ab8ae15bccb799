"""How a model is converted: layouts, dtypes, and the analyses behind them."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import (
    AUTO,
    CALIBRATIONS,
    DTYPES,
    FALLBACKS,
    LAYOUTS,
    LOW_DTYPES,
    QUANTIZATIONS,
    QUANTIZERS,
    SLOWER_LAYERS,
    THRESHOLDS,
    check_layout,
)
from tvmopt.parameters.declare import Group, parameter
from tvmopt.skip_layers import NO_LAYERS, SkipLayers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionParameters(Group):
    """Layout and dtype of the layers."""

    layout: str = parameter(
        AUTO,
        f"layout of the convolutions: {', '.join(LAYOUTS)}; auto: the fastest, as modelled, and "
        "as timed where that is close",
        check=check_layout,
    )
    dtype: str = parameter(
        "float32",
        f"dtype of the layers: {', '.join(DTYPES)}; float32: the model's own; auto: a dtype for "
        "each layer, so that the predicted time is least within max_accuracy_drop",
        choices=DTYPES,
    )
    dtype_map: int = parameter(
        0,
        "auto: which map of dtypes: 0: the fastest that is found to keep max_accuracy_drop; n: the "
        "fastest whose predicted loss is a part (at most 0.8) of that of map n - 1; below 0: "
        "faster ones that may keep it",
        least=-99,
        most=99,
    )
    skip_layers: SkipLayers = parameter(
        NO_LAYERS,
        "layers to leave alone: indices, name globs, operator types (0,fc*,Gemm), or auto",
    )
    keep_dtype: SkipLayers = parameter(
        NO_LAYERS,
        "layers that keep their dtype and take the layout: indices, name globs, operator types",
    )
    slower_layers: str = parameter(
        SLOWER_LAYERS[0],
        "layers that a CPU is predicted to compute clearly more slowly in the dtype than in "
        "float32, changes of dtype counted: float32: they keep float32; convert: they are "
        "converted, too",
        choices=SLOWER_LAYERS,
    )
    thresholds: str = parameter(
        THRESHOLDS[0],
        "trees: how thresholds are kept: exact: as they are; float16: rounded; int8: at most 255 "
        "of a feature; large ensembles of the last two take half the memory",
        choices=THRESHOLDS,
    )
    fallback: str = parameter(
        FALLBACKS[0],
        "what happens to nodes that cannot be compiled: onnxruntime: they run in ONNX Runtime, "
        "within the compiled model; refuse: the model is refused",
        choices=FALLBACKS,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tf32Parameters(Group):
    """Whether float32 may be rounded to TF32."""

    allow_tf32: bool = parameter(
        False,
        "true: float32 matmuls and convolutions may round their operands to TF32, 10 bits of the "
        "mantissa, in the tensor cores of a GPU (Ampere or newer); search tries dtype tf32, too",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationParameters(Group):
    """How int8 is quantised."""

    quantization: str = parameter(
        AUTO,
        f"int8: activations and weights, one of {', '.join(QUANTIZATIONS)}; u8s8-pairs: weights "
        "whose pairs of products the vpmaddubsw of x86 CPUs without VNNI adds exactly; auto: that "
        "for those CPUs, s8s8 for Hopper GPUs, u8s8 for all else",
        choices=(AUTO, *QUANTIZATIONS),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationParameters(Group):
    """How the ranges and biases of int8 are found."""

    calibration: str = parameter(
        "minmax",
        f"int8: how ranges are chosen: {', '.join(CALIBRATIONS)}",
        choices=CALIBRATIONS,
    )
    quantizer: str = parameter(
        AUTO,
        "int8: onnxruntime: the model's biases; nncf: NNCF's fast bias correction; nncf-accurate: "
        "its accurate one; layerwise: weights and biases fitted to the float model; auto: as "
        "layerwise, where that lowers the error on other samples of data",
        choices=(AUTO, *QUANTIZERS),
    )
    calibration_samples: int = parameter(100, "int8: most samples to calibrate on", least=1)
    calibration_time: float = parameter(
        0.0,
        "int8: most seconds to calibrate for, on fewer samples if need be; 0: no limit; a search "
        "takes 10% of its time_budget at most",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityLimitParameters(Group):
    """How long the sensitivity stage measures."""

    sensitivity_time: float = parameter(
        120.0,
        "most seconds to measure sensitivity for; a search takes 10% of its time_budget at most",
        least=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisParameters(Group):
    """What the sensitivity stage analyses."""

    dtypes: str = parameter(
        "",
        f"dtypes to analyse; default: {', '.join(LOW_DTYPES)}",
        choices=LOW_DTYPES,
        listed=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyParameters(Group):
    """The accuracy bar."""

    max_accuracy_drop: float = parameter(
        0.01, "largest accuracy drop against the float model that may be promoted", least=0
    )

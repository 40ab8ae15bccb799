"""Values that a parameter may take, and the checks of single values."""

from __future__ import annotations

import re

from tvmopt.device import dtypes
from tvmopt.errors import ConfigError
from tvmopt.printable import shown

AUTO = "auto"
STRATEGIES = ("fast", "default", "metaschedule", "none")
#: Strategies that measure candidates on this machine.
MEASURING = ("fast", "metaschedule")
#: What is tuned: each fused function as it runs, or its anchor operator alone.
GRANULARITIES = ("subgraph", "operator")
#: What a metric of the user's own is better for.
GOALS = ("larger", "smaller")
#: Dtypes that a conversion can have layers compute in.
LOW_DTYPES = dtypes.names(lambda row: row.convertible)
#: What ``dtype`` may be; ``auto``: a dtype for each layer.
DTYPES = ("float32", *LOW_DTYPES, AUTO)
#: What ``layout`` and ``strategy`` may be for a GPU; ``auto`` is NHWC, which its kernels read.
GPU_LAYOUTS = (AUTO, "NHWC", "NCHW")
GPU_STRATEGIES = ("fast", "default", "none")
#: What ``require_finite`` may be; ``auto``: as the source of the model, or true without.
FINITE = (AUTO, "true", "false")
LAYOUTS = ("auto", "NCHW", "NHWC", "NCHW<c>c", "HWNC")
#: int8 weights whose pairs of products ``vpmaddubsw`` adds without saturation.
U8S8_PAIRS = "u8s8-pairs"
#: Activations and weights of int8.
QUANTIZATIONS = ("u8s8", "s8s8", U8S8_PAIRS)
#: What happens to nodes that cannot be compiled.
FALLBACKS = ("onnxruntime", "refuse")
# Layers that are predicted to be slower in the dtype than in float32.
SLOWER_LAYERS = ("float32", "convert")
CALIBRATIONS = ("minmax", "entropy", "percentile")
ONNXRUNTIME, FAST, ACCURATE = "onnxruntime", "nncf", "nncf-accurate"
LAYERWISE = "layerwise"
#: What corrects int8 layers: nothing, NNCF's fast or accurate bias correction, or a fit of weights
#: and biases to the float model.
QUANTIZERS = (ONNXRUNTIME, FAST, ACCURATE, LAYERWISE)
EXACT_THRESHOLDS, HALF_THRESHOLDS, INT8_THRESHOLDS = "exact", "float16", "int8"
#: How the thresholds of trees are kept: as they are, rounded to float16, or few of each feature.
THRESHOLDS = (EXACT_THRESHOLDS, HALF_THRESHOLDS, INT8_THRESHOLDS)
#: Aliases of registered versions.
CANDIDATE, CHAMPION = "candidate", "champion"
OBJECTIVES = ("latency", "accuracy_drop", "library_bytes")


def is_layout(text: str) -> bool:
    """Whether ``text`` names a layout: one of ``LAYOUTS``, its block written as a number."""
    return re.fullmatch(r"auto|NCHW|NHWC|HWNC|NCHW[1-9]\d{0,3}c", text) is not None


def check_layout(name: str, value: str) -> None:
    """Raise :class:`ConfigError` unless ``value`` names a layout."""
    if not is_layout(value):
        raise ConfigError(
            f"{name} must be one of {', '.join(LAYOUTS)} (such as NCHW16c), but got {shown(value)}"
        )


def check_layouts(name: str, text: str) -> None:
    """Raise :class:`ConfigError` unless ``text`` lists layouts, separated by commas."""
    for word in filter(None, (part.strip() for part in text.split(","))):
        if not is_layout(word):
            raise ConfigError(f"{name} must hold layouts such as NHWC, but got {shown(word)}")


def check_objectives(name: str, text: str) -> None:
    """Raise :class:`ConfigError` unless ``text`` lists objectives, latency first."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or found[0] != OBJECTIVES[0] or not set(found) <= set(OBJECTIVES):
        raise ConfigError(
            f"{name} must be latency, and after it any of {', '.join(OBJECTIVES[1:])}, but got "
            f"{shown(text)}"
        )


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise :class:`ConfigError` unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, but got {shown(value)}")


def at_least(name: str, value: float, least: float) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a number of at least ``least``."""
    if not value >= least:
        raise ConfigError(f"{name} must be at least {least:g}, but got {value:g}")

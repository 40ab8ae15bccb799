"""Resolve the dtype of each layer of a conversion: ``dtype``, ``skip_layers``, ``keep_dtype``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

from tvmopt.choices import AUTO
from tvmopt.config import ConvertConfig
from tvmopt.errors import ConfigError
from tvmopt.frontend import Layer
from tvmopt.kernels.recurrence import GATES
from tvmopt.quantize import Ranges, Sensitivity
from tvmopt.quantize.analysis import is_convertible
from tvmopt.quantize.dtype_map import DtypeMap, half_layers, whole_model_dtype
from tvmopt.quantize.layer_times import FLOAT
from tvmopt.quantize.mixed_biases import with_biases
from tvmopt.stages.convert_module import Skipped
from tvmopt.stages.sensitivity import read_proposal, read_sensitivity

_PROPOSED = "skip_layers: auto (sensitivity)"
_CHOSEN = "dtype: auto (accuracy or time)"
_UNMEASURED = "dtype: auto (recurrent layers are not measured)"


def with_biases_of_map(
    ranges: Ranges,
    layers: Sequence[Layer],
    halves: Collection[int],
    sensitivity_dir: Path,
    number: int,
) -> Ranges:
    """Return ``ranges`` with the biases that were corrected for the chosen dtypes.

    Args:
        ranges: Ranges and biases of the calibrate stage.
        layers: The layer table.
        halves: Indices of layers in a 16-bit float; others do not use such biases.
        sensitivity_dir: Output of the sensitivity stage.
        number: Number of the map, ``dtype_map``.
    """
    chosen = read_sensitivity(sensitivity_dir).map(number)
    by_name = {
        layers[index].name: dtype
        for index, dtype in chosen.by_layer.items()
        if dtype == "int8" or index in halves
    }
    return with_biases(ranges, chosen.biases, by_name)


def dtypes_of_map(
    config: ConvertConfig, layers: Sequence[Layer], found: Sensitivity, one: DtypeMap
) -> dict[str, str]:
    """Return the dtype of each layer that some dtype can convert, by node name.

    Args:
        config: Configuration of the conversion; layers that it skips or keeps stay float32.
        layers: The layer table.
        found: The analysis.
        one: One of its maps.

    Raises:
        ConfigError: When a pattern matches no layer.
    """
    by_user = config.skip_layers.named.resolve(layers)
    chosen = _without(one, {**by_user, **config.keep_dtype.resolve(layers, "keep_dtype")})
    convertible = [cost for cost in found.costs if is_convertible(cost)]
    return {cost.name: chosen.get(cost.index, FLOAT) for cost in convertible}


def _without(one: DtypeMap, left: Collection[int]) -> dict[int, str]:
    """Return the dtypes of the layers that leave float32, by index, without the layers ``left``."""
    return {index: dtype for index, dtype in one.by_layer.items() if index not in left}


def resolve_layer_dtypes(
    config: ConvertConfig, layers: Sequence[Layer], quantised: bool, sensitivity_dir: Path | None
) -> tuple[ConvertConfig, Skipped]:
    """Return the configuration with one dtype, and the layers that do not have it.

    Args:
        config: Configuration of the stage.
        layers: The layer table.
        quantised: Whether the model came quantised; it keeps its dtypes under ``auto``.
        sensitivity_dir: Output of the sensitivity stage; needed where a value is ``auto``.

    Raises:
        ConfigError: When a pattern matches no layer, or the output is needed and missing.
    """
    by_user = config.skip_layers.named.resolve(layers)
    kept = config.keep_dtype.resolve(layers, "keep_dtype")
    if config.dtype != AUTO:
        proposed: Sequence[int] = ()
        if config.skip_layers.auto and sensitivity_dir is not None:
            proposed = read_proposal(sensitivity_dir, config.dtype)
        return config, Skipped(by_user, {**dict.fromkeys(proposed, _PROPOSED), **kept})
    if quantised:
        return dataclasses.replace(config, dtype="float32"), Skipped(by_user, kept)
    if sensitivity_dir is None:
        raise ConfigError(
            "dtype=auto needs the output of the sensitivity stage, but got none; run it first"
        )
    found = read_sensitivity(sensitivity_dir)
    left = {**by_user, **kept}
    chosen = _without(found.map(config.dtype_map), left)
    dtype = whole_model_dtype(chosen.values())
    halves = {i: half for i, half in half_layers(chosen).items() if half != dtype}
    convertible = {cost.index for cost in found.costs if is_convertible(cost)}
    floats = dict.fromkeys(sorted(convertible - chosen.keys()), _CHOSEN)
    floats |= {layer.index: _UNMEASURED for layer in layers if layer.op in GATES} | kept
    return dataclasses.replace(config, dtype=dtype), Skipped(by_user, floats, halves)

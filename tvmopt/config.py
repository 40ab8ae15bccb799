"""Configurations of the stages: frozen dataclasses that check every value they are given.

A configuration holds the parameters of its stage by their own names, inherited from their groups.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from tvmopt.choices import (
    ACCURATE,
    AUTO,
    EXACT_THRESHOLDS,
    FAST,
    LOW_DTYPES,
    MEASURING,
    QUANTIZATIONS,
    at_least,
    one_of,
)
from tvmopt.device.dtypes import TF32
from tvmopt.errors import ConfigError
from tvmopt.parameters.groups import (
    AccuracyParameters,
    CalibrationParameters,
    ConversionParameters,
    MeasurementParameters,
    MetricParameters,
    SensitivityLimitParameters,
    Tf32Parameters,
    TuningParameters,
)
from tvmopt.remote.board import Board
from tvmopt.skip_layers import SkipLayers

# Further sizes of a model that are tuned in the time of the largest one.
_SIZES_AS_ONE = 10
_RPC = ("rpc_tracker", "rpc_key")
# Left out of a digest when empty, so that digests of local measurements, of exact float32, of
# calibration without a time limit, and of the first map of dtypes stay equal.
_ONLY_IF_SET = (*_RPC, "allow_tf32", "calibration_time", "exact_pairs", "dtype_map")

_C = TypeVar("_C", bound="StageConfig")


@dataclasses.dataclass(frozen=True)
class StageConfig:
    """Base of the stage configurations."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        data = dataclasses.asdict(self)
        text = {name: str(value) for name, value in data.items() if isinstance(value, SkipLayers)}
        return {name: v for name, v in (data | text).items() if v or name not in _ONLY_IF_SET}

    @classmethod
    def from_dict(cls: type[_C], data: dict[str, Any]) -> _C:
        """Rebuild a configuration from :meth:`to_dict`."""
        return cls(**data)


@dataclasses.dataclass(frozen=True)
class CalibrateConfig(StageConfig, CalibrationParameters):
    """Range of every activation, and corrected layers, on a few samples.

    Attributes:
        input_shapes: As in :class:`ConvertConfig`.
        exact_pairs: Whether weights are fitted to the quantization ``"u8s8-pairs"``.
    """

    input_shapes: str
    exact_pairs: bool = False

    def __post_init__(self) -> None:
        from tvmopt.nncf_import import require_nncf

        super().__post_init__()
        if self.quantizer in (FAST, ACCURATE):
            require_nncf(self.quantizer)


@dataclasses.dataclass(frozen=True)
class SensitivityConfig(
    StageConfig, MetricParameters, AccuracyParameters, SensitivityLimitParameters
):
    """Configuration of the sensitivity stage: accuracy loss and gain of each layer and dtype.

    Attributes:
        input_shapes: As in :class:`ConvertConfig`.
        target: ``TargetSpec.to_dict()``; its peak rates and latencies say what is gained.
        dtypes: dtypes to analyse.
        quantization: One of ``choices.QUANTIZATIONS``.
        samples: Most samples to measure accuracy on, of the data's calibration part.
        layer_dtypes: Whether to choose a dtype for each layer, instead of skip sets.
        metric_sha256: As in :class:`EvaluateConfig`.
    """

    input_shapes: str
    target: dict[str, Any]
    dtypes: tuple[str, ...] = LOW_DTYPES
    quantization: str = "u8s8"
    samples: int = 256
    layer_dtypes: bool = False
    metric_sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtypes", tuple(self.dtypes))
        if not self.dtypes:
            raise ConfigError(f"dtypes must name at least one of {', '.join(LOW_DTYPES)}")
        for dtype in self.dtypes:
            one_of("dtypes", dtype, LOW_DTYPES)
        one_of("quantization", self.quantization, QUANTIZATIONS)
        at_least("samples", self.samples, 1)


@dataclasses.dataclass(frozen=True)
class ScreenConfig(StageConfig, MetricParameters, AccuracyParameters):
    """Which map of dtypes keeps the accuracy on the evaluation samples, in ONNX Runtime.

    Attributes:
        convert: ``ConvertConfig.to_dict()`` of the conversion that follows, whatever its map.
        first: Number of the first map to measure.
        least: Least number of a map to take, of the fastest one.
        metric_sha256: As in :class:`EvaluateConfig`.
        max_samples: As in :class:`EvaluateConfig`.
        time_limit_s: Most seconds for all maps together; 0 for no limit.
    """

    convert: dict[str, Any]
    first: int = 0
    least: int = 0
    metric_sha256: str = ""
    max_samples: int = 2000
    time_limit_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class ConvertConfig(StageConfig, ConversionParameters, Tf32Parameters):
    """Configuration of the convert stage: ONNX to Relax in a layout and a dtype.

    Attributes:
        input_shapes: ``"image:1x3x224x224,mask:1x16"``; inputs that are static may be left out.
        target: ``TargetSpec.to_dict()``; the check of the conversion is compiled for it.
        quantization: For int8: activations and weights, ``"u8s8"`` or ``"s8s8"``.
        is_checked: Whether to compile and run the module in this stage, for a float32 model that is
            compiled whole; the build stage checks the library in any case.
    """

    input_shapes: str
    target: dict[str, Any]
    quantization: str = "u8s8"
    is_checked: bool = True

    def __post_init__(self) -> None:
        from tvmopt.frontend.given_sizes import parse_given_sizes

        super().__post_init__()
        parse_given_sizes(self.input_shapes)  # raises where it cannot be read
        one_of("quantization", self.quantization, QUANTIZATIONS)
        if self.allow_tf32:
            _check_has_tf32(self.target)

    @property
    def may_lose_accuracy(self) -> bool:
        """Return whether numbers may be rounded more than in the model."""
        return self.computed_dtype != "float32" or self.thresholds != EXACT_THRESHOLDS

    @property
    def computed_dtype(self) -> str:
        """Return the dtype that layers multiply in: ``"tf32"`` where float32 may be rounded."""
        return TF32.name if self.allow_tf32 and self.dtype == "float32" else self.dtype

    @property
    def may_quantise(self) -> bool:
        """Return whether layers may become int8, which needs calibration."""
        return self.dtype in ("int8", AUTO)

    @property
    def needs_analysis(self) -> bool:
        """Return whether the sensitivity stage must propose something: an ``auto`` value."""
        return self.dtype == AUTO or (self.skip_layers.auto and self.dtype != "float32")


def _check_has_tf32(data: dict[str, Any]) -> None:
    from tvmopt.device.target import TargetSpec

    target = TargetSpec.from_dict(data)
    if target.gpu is None or not target.gpu.has_tf32:
        raise ConfigError(
            f"allow_tf32 must be false for {target.device}, but got true: only the tensor cores of "
            "GPUs from compute capability 8.0 (Ampere) on multiply TF32"
        )


@dataclasses.dataclass(frozen=True)
class TuneConfig(StageConfig, TuningParameters):
    """Find schedules. Parameters that the strategy does not use have their defaults.

    Attributes:
        target: ``TargetSpec.to_dict()``.
        seed: Seed of every random choice.
        rpc_tracker: ``"host:port"`` of TVM's RPC tracker; empty to measure on this machine.
        rpc_key: Key of the board there to measure on.
    """

    target: dict[str, Any]
    seed: int = 0
    rpc_tracker: str = ""
    rpc_key: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        unused = {
            p.name: p.default
            for p in self.parameters()
            if p.used_by and self.strategy not in p.used_by
        }
        if self.strategy not in MEASURING:
            unused |= dict.fromkeys(_RPC, "")
        for name, default in unused.items():
            object.__setattr__(self, name, default)
        Board.parse(self.rpc_tracker, self.rpc_key)
        if self.trials < 1:
            raise ConfigError(
                f"trials must be at least 1 for strategy 'metaschedule', but got {self.trials}"
            )

    def for_further_size(self) -> TuneConfig:
        """Return the configuration for a further size of the model: a tenth of the effort.

        Ten sizes then take less than three times as long as one.
        """
        topk, trials = (max(1, effort // _SIZES_AS_ONE) for effort in (self.topk, self.trials))
        if self.strategy == "fast":
            return dataclasses.replace(
                self, topk=topk, time_budget=self.time_budget / _SIZES_AS_ONE
            )
        if self.strategy == "metaschedule":
            return dataclasses.replace(
                self, trials=trials, time_budget=self.time_budget / _SIZES_AS_ONE
            )
        return self


@dataclasses.dataclass(frozen=True)
class BuildConfig(StageConfig):
    """Scheduled module -> shared library.

    Attributes:
        name: Name of the model, written into its metadata.
        target: ``TargetSpec.to_dict()``.
        schedule: ``"default"`` schedules what the tuning database does not; ``"none"`` leaves
            everything as TVM's own pipeline has it, the baseline.
        all_sizes: Whether the library holds all sizes of the model; else the largest alone.
        plants_non_finite: Whether to run it on inputs that hold NaN and infinities, ten calls.
    """

    name: str
    target: dict[str, Any]
    schedule: str = "default"
    all_sizes: bool = True
    plants_non_finite: bool = True

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, ("default", "none"))


@dataclasses.dataclass(frozen=True)
class ProfileConfig(StageConfig):
    """Compiled models -> time of every kernel.

    Attributes:
        calls: Timed calls of each model.
        time_limit_s: Most seconds for the calls of one model; slow ones get fewer calls.
    """

    calls: int
    time_limit_s: float = 10.0


@dataclasses.dataclass(frozen=True)
class EvaluateConfig(StageConfig, MetricParameters, MeasurementParameters):
    """Measure accuracy and latency.

    Attributes:
        threads: Threads of every contender, ONNX Runtime included.
        metric_sha256: sha256 of the user's own metric or alphabet; empty for other metrics.
        time_limit_s: Most seconds for the latency of one contender; slow ones get fewer samples.
        max_samples: Most data samples to evaluate accuracy on.
        accuracy_time_s: Most seconds for the accuracy, of all contenders and the float model
            together, so that fewer samples may be seen; 0 for no limit.
        rpc_tracker: ``"host:port"`` of TVM's RPC tracker; empty to measure on this machine.
        rpc_key: Key of the board there to measure on.
        starts_reference: Whether to measure ONNX Runtime's cold start, too. It is the same in all
            trials of a search.
    """

    threads: int
    metric_sha256: str = ""
    time_limit_s: float = 10.0
    max_samples: int = 2000
    accuracy_time_s: float = 0.0
    rpc_tracker: str = ""
    rpc_key: str = ""
    starts_reference: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Board.parse(self.rpc_tracker, self.rpc_key)
        if self.size_mix and self.rpc_tracker:
            raise ConfigError(
                f"size_mix is measured on this machine only, but got {self.size_mix!r} with "
                "rpc_tracker; leave one of them empty"
            )
        at_least("time_limit", self.time_limit_s, 0.1)
        at_least("accuracy_time", self.accuracy_time_s, 0)

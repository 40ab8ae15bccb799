"""Groups of parameters that entry points are composed of; defaults and rules stand here only."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import (
    AUTO,
    CALIBRATIONS,
    CANDIDATE,
    CHAMPION,
    DTYPES,
    FALLBACKS,
    FINITE,
    GOALS,
    GRANULARITIES,
    LAYOUTS,
    LOW_DTYPES,
    MEASURING,
    OBJECTIVES,
    QUANTIZATIONS,
    QUANTIZERS,
    STRATEGIES,
    THRESHOLDS,
    check_layout,
    check_layouts,
    check_objectives,
)
from tvmopt.metrics.check import check_metric
from tvmopt.parameters.declare import Group, needed, parameter
from tvmopt.skip_layers import NO_LAYERS, SkipLayers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParameters(Group):
    """Which model, with which data, for which target."""

    model: str = parameter(
        "",
        "ONNX or .pt2 file, or MLflow URI (runs:/..., models:/...) of a model of the flavor onnx, "
        "sklearn, xgboost, lightgbm or pytorch; default: the bundled example",
    )
    name: str = parameter(
        "", "name of the experiment and the registered model; default: the file's"
    )
    input_shapes: str = parameter(
        "",
        "sizes of dynamic dimensions, e.g. batch=1,sequence=16, or shapes of inputs, e.g. "
        "image:1x3x224x224,mask:1x16; a size may be a set, e.g. batch=1,4,16 or ids:1x{16:128:16}; "
        "sequence=auto takes sizes that fit the samples in data",
    )
    data: str = parameter(
        "",
        ".npz with an array an input and optionally integer 'labels', or .npy; 20% calibrate, 50% "
        "evaluate, 30% are held out for promotion; of a model that is no ONNX model also .csv or "
        ".parquet, default: the data set of its run, or its input example",
    )
    label: str = parameter(
        "",
        "column of a .csv or .parquet table with the labels; default: labels, label, y, targets or "
        "target, if there is one",
    )
    trust: bool = parameter(
        False,
        "true: read the model's file even if it is a pickle, which can run any code of whoever "
        "logged it",
    )
    target: str = parameter(
        "host",
        "'host', a CPU (skylake-avx512, cortex-a76, graviton3), 'cuda' (this machine's GPU), a "
        "GPU (nvidia-h200, a100), or JSON with mcpu and mattr",
    )
    threads: int = parameter(
        0,
        "threads to compile for and measure with, for a GPU ONNX Runtime's; 0: all usable cores",
        least=0,
    )


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
    skip_layers: SkipLayers = parameter(
        NO_LAYERS,
        "layers to leave alone: indices, name globs, operator types (0,fc*,Gemm), or auto",
    )
    keep_dtype: SkipLayers = parameter(
        NO_LAYERS,
        "layers that keep their dtype and take the layout: indices, name globs, operator types",
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
        f"int8: activations and weights, {' or '.join(QUANTIZATIONS)}; auto: s8s8 for Hopper "
        "GPUs, u8s8 for all else",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningParameters(Group):
    """How schedules are found."""

    strategy: str = parameter(
        "fast", f"tuning strategy: {', '.join(STRATEGIES)}", choices=STRATEGIES
    )
    granularity: str = parameter(
        "subgraph",
        "what fast and metaschedule measure: subgraph, each fused function as it runs; operator, "
        "its anchor alone, whose schedule the functions around it take over",
        choices=GRANULARITIES,
        used_by=MEASURING,
    )
    topk: int = parameter(
        20,
        "most configurations of one function that fast measures; 20 means 4 for a model of the "
        "flavor sklearn, xgboost or lightgbm",
        least=1,
        used_by=("fast",),
    )
    trials: int = parameter(
        64, "most candidates that metaschedule measures", least=0, used_by=("metaschedule",)
    )
    time_budget: float = parameter(
        0.0,
        "most seconds to tune for; 0: no limit, or 10 for a model of the flavor sklearn, xgboost "
        "or lightgbm, and for one of pytorch below 1 MB; with dtype int8 or auto tuning takes 30% "
        "of it, calibration 15% and the sensitivity analysis 25%",
        least=0,
        used_by=MEASURING,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartParameters(Group):
    """Where tuning begins."""

    warm_start: str = parameter("", "run id of an earlier tune run to begin from")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricParameters(Group):
    """What accuracy means."""

    metric: str = parameter(
        "auto",
        "accuracy metric: auto, top1; without labels fidelity, which is agreement (of classes) or "
        "float_r2 (R2 with the float model); of scikit-learn: accuracy, f1, roc_auc, r2, "
        "mean_absolute_error, mean_iou, top5 and more, f1@output for one of several outputs; of "
        "texts wer and cer; or "
        "your own file.py:function, which gets outputs and labels and returns a number",
    )
    metric_goal: str = parameter(
        "", "what is better for a metric of your own: larger or smaller", choices=("", *GOALS)
    )
    metric_alphabet: str = parameter(
        "", "file for wer and cer with the symbol of each class of the output, one a line"
    )
    metric_blank: int = parameter(
        0, "class of the blank of CTC for wer and cer; -1 for the last one", least=-1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric, self.metric_goal, self.metric_alphabet)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasurementParameters(Group):
    """How latency is measured."""

    repeats: int = parameter(200, "latency samples of each contender", least=5)
    size_mix: str = parameter(
        "",
        "calls by size where input_shapes has several, e.g. 9*batch=1;1*batch=16: their mean "
        "latency is measured, and minimised by search; default: the largest size alone",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoardParameters(Group):
    """The board that measures."""

    rpc_tracker: str = parameter(
        "",
        "host:port of a TVM RPC tracker; with it, a board measures instead of this machine",
    )
    rpc_key: str = parameter("", "key of the board at rpc_tracker")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageLimitParameters(Group):
    """What one stage may use; changes no result."""

    stage_timeout: float = parameter(7200.0, "most seconds for one stage; 0: no limit", least=0)
    memory_limit: float = parameter(
        0.0,
        "most memory in MB for one stage; 0: 80% of what this machine or container allows",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReuseParameters(Group):
    """Whether earlier stages are reused."""

    no_cache: bool = parameter(False, "true: do every stage again, reuse none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRunParameters(Group):
    """Whether the command only says what it would do."""

    dry_run: bool = parameter(
        False, "true: print the resolved parameters and what would run or be reused; run nothing"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpaceParameters(Group):
    """What a search tries."""

    dtypes: str = parameter(
        "",
        f"dtypes to try: {', '.join(DTYPES)}; default: those with a higher peak rate than float32, "
        "and float32",
        choices=DTYPES,
        listed=True,
    )
    layouts: str = parameter(
        "",
        "layouts to try; default: NHWC, NCHW16c, NCHW for models with convolutions",
        listed=True,
        check=check_layouts,
    )
    strategies: str = parameter(
        "",
        f"efforts of tuning to try: {', '.join(STRATEGIES)}; default: all but none",
        choices=STRATEGIES,
        listed=True,
    )
    granularities: str = parameter(
        "",
        f"granularities of tuning to try: {', '.join(GRANULARITIES)}; default: both",
        choices=GRANULARITIES,
        listed=True,
    )
    topk: int = parameter(
        TuningParameters.topk, "most configurations of one function that fast measures", least=1
    )
    space: str = parameter(
        "",
        "YAML file with values of any dimension of the search, such as skip_layers and layouts",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchLimitParameters(Group):
    """Hard limits and objectives of a search."""

    max_library_mb: float = parameter(
        0.0, "largest library in MB (10^6 bytes); 0: no limit", least=0
    )
    max_memory_mb: float = parameter(
        0.0, "largest peak memory of inference in MB; 0: no limit", least=0
    )
    max_p99_ms: float = parameter(0.0, "largest 99th percentile of latency; 0: no limit", least=0)
    objectives: str = parameter(
        "latency",
        f"what is to be small: {OBJECTIVES[0]}, and after it {' and '.join(OBJECTIVES[1:])}",
        listed=True,
        check=check_objectives,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetParameters(Group):
    """What a study as a whole may spend."""

    trials: int = parameter(24, "most trials of the study after the baseline; 0: no limit", least=0)
    time_budget: float = parameter(
        1800.0, "most seconds that the study is worked on; 0: no limit", least=0
    )
    patience: int = parameter(
        0, "end after so many trials in a row without a better artifact; 0: no limit", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialLimitParameters(Group):
    """What one stage of a trial may use."""

    trial_timeout: float = parameter(1200.0, "most seconds for one stage of a trial", least=0)
    memory_limit: float = parameter(
        StageLimitParameters.memory_limit,
        "most memory in MB for one stage; 0: 80% of what this machine or container allows",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyParameters(Group):
    """Which study, in which database."""

    study: str = parameter(
        "", "name of the study to begin or to go on with; default: one for the same question"
    )
    storage: str = parameter(
        "",
        "database of studies (sqlite:///file.db, postgresql://...); default: tvmopt-studies.db "
        "beside the tracking store",
    )
    seed: int = parameter(0, "seed of what is tried in which order", least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinParameters(Group):
    """Which study a worker joins, and where the model lies on its machine."""

    study: str = needed("name of the study to join")
    storage: str = parameter(
        StudyParameters.storage,
        "database of studies (sqlite:///file.db, postgresql://...); default: tvmopt-studies.db "
        "beside the tracking store",
    )
    model: str = parameter("", "the study's model on this machine; default: where it lay")
    data: str = parameter("", "the study's data on this machine; default: where it lay")
    seed: int = parameter(
        0, "seed of what is tried in which order; 0: one for each process", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionParameters(Group):
    """Which version of a registered model."""

    name: str = needed("name of the registered model")
    version: str = parameter(CHAMPION, "version number or alias of the registered model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileParameters(Group):
    """How kernels are timed, and what their times are set beside."""

    baseline: str = parameter(
        AUTO,
        "version number or alias of the float32 build to set beside; auto: the newest version of "
        "the same ONNX model, shapes, target and threads; none: nothing",
    )
    calls: int = parameter(100, "timed calls of each model", least=5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateParameters(Group):
    """Which version to promote, under which alias, on which data."""

    name: str = needed("name of the registered model")
    version: str = parameter(CANDIDATE, "version number or alias of the registered model")
    alias: str = parameter(CHAMPION, "alias to give")
    data: str = parameter("", ".npz or .npy file; its held-out 30% is used; default: random inputs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputParameters(Group):
    """Where files go."""

    output: str = parameter("", "folder to create; default: <name>-<version>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerParameters(Group):
    """How a model is served."""

    host: str = parameter(
        "127.0.0.1",
        "address to listen at; any but a loopback address lets other machines in, without "
        "password or encryption",
    )
    port: int = parameter(5001, "TCP port to listen at; 0: one that is free", least=0, most=65535)
    require_finite: str = parameter(
        "auto",
        "true: refuse inputs and outputs that hold NaN or infinities; auto: true, but a model of a "
        "source takes in each column what its source takes",
        choices=FINITE,
    )
    max_request_mb: float = parameter(
        0.0,
        "largest body of a request in MB (10^6 bytes); 0: 64 bytes for each value of the inputs "
        "(where the model takes any number of rows, of 256, but at most 16 MB), and 64 KB",
        least=0,
    )
    max_batch: int = parameter(
        0,
        "most rows of one call, to which requests that wait are joined, where the model takes any "
        "number of rows; 0: as many as it was compiled for",
        least=0,
    )
    max_wait_ms: float = parameter(
        0.0, "time that a request waits for others to join while the model is free", least=0
    )
    max_waiting: int = parameter(
        1000, "most requests that wait for the model; others are answered with status 503", least=1
    )

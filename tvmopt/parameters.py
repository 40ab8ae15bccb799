"""Every parameter of every entry point, once: name, type, default, meaning.

The command lines, the MLproject file and the documentation follow this table; a test compares it
with the signatures of the functions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.config import (
    CALIBRATIONS,
    DTYPES,
    GRANULARITIES,
    LAYOUTS,
    LOW_DTYPES,
    METRICS,
    QUANTIZATIONS,
    STRATEGIES,
)
from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: Its name, the same on the command line, in MLproject and in Python.
        kind: ``str``, ``int``, ``float`` or ``bool``.
        default: Its default; None when it must be given.
        help: What it means, with units.
    """

    name: str
    kind: type
    default: Any
    help: str

    def parse(self, text: str) -> Any:
        """Value of ``text``.

        Raises:
            ConfigError: When it is no value of the parameter's type.
        """
        text = text.strip()
        if self.kind is str:
            return text
        if self.kind is bool:
            if text.lower() in ("true", "1", "yes"):
                return True
            if text.lower() in ("false", "0", "no"):
                return False
            raise ConfigError(f"{self.name} must be true or false, but got {text!r}")
        word = {int: "a whole number", float: "a number"}[self.kind]
        try:
            value = self.kind(text)
        except ValueError as error:
            raise ConfigError(f"{self.name} must be {word}, but got {text!r}") from error
        if value != value or value in (float("inf"), float("-inf")):
            raise ConfigError(f"{self.name} must be a finite number, but got {text!r}")
        return value


_ALL = (
    Parameter("model", str, "",
              "ONNX file, or MLflow URI (runs:/..., models:/...) of an ONNX model; default: the "
              "bundled example"),
    Parameter("name", str, "",
              "name of the experiment and the registered model; default: the file's"),
    Parameter("input_shapes", str, "",
              "shapes of dynamic inputs, e.g. image:1x3x224x224,mask:1x16"),
    Parameter("data", str, "",
              ".npz with an array an input and optionally integer 'labels', or .npy; 20% "
              "calibrate, 50% evaluate, 30% are held out for promotion"),
    Parameter("target", str, "host",
              "'host', a CPU (skylake-avx512, cortex-a76, graviton3), 'cuda' (this machine's GPU), "
              "a GPU (nvidia-h200, a100), or JSON with mcpu and mattr"),
    Parameter("threads", int, 0,
              "threads to compile for and measure with, for a GPU ONNX Runtime's; 0: all usable "
              "cores"),
    Parameter("layout", str, "auto",
              f"layout of the convolutions: {', '.join(LAYOUTS)}; auto: the fastest, as modelled, "
              "and as timed where that is close"),
    Parameter("dtype", str, "float32",
              f"dtype of the layers: {', '.join(DTYPES)}; float32: the model's own"),
    Parameter("dtypes", str, "", f"dtypes to analyse; default: {', '.join(LOW_DTYPES)}"),
    Parameter("skip_layers", str, "",
              "layers to leave alone: indices, name globs, operator types (0,fc*,Gemm), or auto"),
    Parameter("quantization", str, "auto",
              f"int8: activations and weights, {' or '.join(QUANTIZATIONS)}; auto: s8s8 for "
              "Hopper GPUs, u8s8 for all else"),
    Parameter("calibration", str, "minmax",
              f"int8: how ranges are chosen: {', '.join(CALIBRATIONS)}"),
    Parameter("calibration_samples", int, 100, "int8: most samples to calibrate on"),
    Parameter("sensitivity_time", float, 120.0, "most seconds to measure sensitivity for"),
    Parameter("strategy", str, "fast", f"tuning strategy: {', '.join(STRATEGIES)}"),
    Parameter("granularity", str, "subgraph",
              "what fast and metaschedule measure: subgraph, each fused function as it runs; "
              "operator, its anchor alone, whose schedule the functions around it take over"),
    Parameter("topk", int, 20, "most configurations of one function that fast measures"),
    Parameter("trials", int, 64, "most candidates that metaschedule measures"),
    Parameter("time_budget", float, 0.0, "most seconds to tune for; 0: no limit"),
    Parameter("max_accuracy_drop", float, 0.01,
              "largest accuracy drop against the float model that may be promoted"),
    Parameter("metric", str, "auto", f"accuracy metric: {', '.join(METRICS)}"),
    Parameter("repeats", int, 200, "latency samples of each contender"),
    Parameter("rpc_tracker", str, "",
              "host:port of a TVM RPC tracker; with it, a board measures instead of this machine"),
    Parameter("rpc_key", str, "", "key of the board at rpc_tracker"),
    Parameter("warm_start", str, "", "run id of an earlier tune run to begin from"),
    Parameter("layouts", str, "",
              "layouts to try; default: NHWC, NCHW16c, NCHW for models with convolutions"),
    Parameter("strategies", str, "",
              f"efforts of tuning to try: {', '.join(STRATEGIES)}; default: all but none"),
    Parameter("granularities", str, "",
              f"granularities of tuning to try: {', '.join(GRANULARITIES)}; default: both"),
    Parameter("space", str, "",
              "YAML file with dtypes, skip_layers, layouts, strategies, granularities, topk, "
              "metaschedule_trials"),
    Parameter("max_library_mb", float, 0.0, "largest library in MB (10^6 bytes); 0: no limit"),
    Parameter("max_memory_mb", float, 0.0, "largest peak memory of inference in MB; 0: no limit"),
    Parameter("max_p99_ms", float, 0.0, "largest 99th percentile of latency; 0: no limit"),
    Parameter("objectives", str, "latency",
              "what is to be small: latency, and after it accuracy_drop and library_bytes"),
    Parameter("patience", int, 0,
              "end after so many trials in a row without a better artifact; 0: no limit"),
    Parameter("trial_timeout", float, 1200.0, "most seconds for one stage of a trial"),
    Parameter("memory_limit", float, 0.0,
              "most memory in MB for one stage; 0: 80% of what this machine or container allows"),
    Parameter("study", str, "",
              "name of the study to begin or to go on with; default: one for the same question"),
    Parameter("storage", str, "",
              "database of studies (sqlite:///file.db, postgresql://...); default: "
              "tvmopt-studies.db beside the tracking store"),
    Parameter("seed", int, 0, "seed of what is tried in which order"),
    Parameter("stage_timeout", float, 7200.0, "most seconds for one stage; 0: no limit"),
    Parameter("no_cache", bool, False, "true: do every stage again, reuse none"),
    Parameter("version", str, "", "version number or alias of the registered model"),
    Parameter("alias", str, "champion", "alias to give"),
    Parameter("output", str, "", "folder to create; default: <name>-<version>"),
    Parameter("host", str, "127.0.0.1",
              "address to listen at; any but a loopback address lets other machines in, without "
              "password or encryption"),
    Parameter("port", int, 5001, "TCP port to listen at; 0: one that is free"),
    Parameter("require_finite", bool, True,
              "true: refuse inputs and outputs that hold NaN or infinities"),
    Parameter("max_request_mb", float, 0.0,
              "largest body of a request in MB (10^6 bytes); 0: 64 bytes for each value of the "
              "inputs, and 64 KB"),
)  # fmt: skip
_BY_NAME = {p.name: p for p in _ALL}
_MODEL = ("model", "name", "input_shapes", "data", "target", "threads")
_QUANTIZATION = ("quantization", "calibration", "calibration_samples")
_CONVERSION = ("layout", "dtype", "skip_layers", *_QUANTIZATION, "max_accuracy_drop")
_TUNING = ("strategy", "granularity", "topk", "trials", "time_budget")
_BOARD = ("rpc_tracker", "rpc_key")


_LIMITS = ("stage_timeout", "memory_limit")
_LAST = (*_LIMITS, "no_cache")


def _table(*names: str, **defaults: Any) -> tuple[Parameter, ...]:
    return tuple(
        dataclasses.replace(_BY_NAME[n], default=defaults.get(n, _BY_NAME[n].default))
        for n in names
    )


def _search_table() -> tuple[Parameter, ...]:
    """Parameters of ``search``; two of them mean the study, where elsewhere they mean tuning."""
    renamed = {
        "trials": (24, "most trials of the study after the baseline; 0: no limit"),
        "time_budget": (1800.0, "most seconds that the study is worked on; 0: no limit"),
    }
    rows = []
    for row in _table(
        *_MODEL, "dtypes", "layouts", "strategies", "granularities", "topk", "space",
        *_QUANTIZATION, "sensitivity_time", "max_accuracy_drop", "max_library_mb",
        "max_memory_mb", "max_p99_ms", "objectives", "trials", "time_budget", "patience",
        "trial_timeout", "memory_limit", "metric", "repeats", "study", "storage", "seed",
    ):  # fmt: skip
        if row.name in renamed:
            default, text = renamed[row.name]
            row = dataclasses.replace(row, default=default, help=text)
        rows.append(row)
    return tuple(rows)


ENTRY_POINTS: dict[str, tuple[Parameter, ...]] = {
    "main": _table(*_MODEL, *_CONVERSION, *_TUNING, "metric", "repeats", *_BOARD, *_LAST),
    "sensitivity": _table(
        *_MODEL, "dtypes", *_QUANTIZATION, "max_accuracy_drop", "sensitivity_time", *_LAST
    ),
    "convert": _table(*_MODEL, *_CONVERSION, *_LAST),
    "tune": _table(*_MODEL, *_CONVERSION, *_TUNING, *_BOARD, "warm_start", *_LAST),
    "build": _table(*_MODEL, *_CONVERSION, *_TUNING, *_BOARD, *_LAST),
    "evaluate": _table(*_MODEL, *_CONVERSION, *_TUNING, "metric", "repeats", *_BOARD, *_LAST),
    "search": _search_table(),
    "worker": _table(
        "study", "storage", "model", "data", "trial_timeout", "memory_limit", "seed", study=None
    ),
    "promote": _table(
        "name",
        "version",
        "alias",
        "data",
        "max_accuracy_drop",
        *_BOARD,
        *_LIMITS,
        name=None,
        version="candidate",
    ),
    "pull": _table("name", "version", "output", name=None, version="champion"),
    "serve": _table(
        "name",
        "version",
        "host",
        "port",
        "require_finite",
        "max_request_mb",
        name=None,
        version="champion",
    ),
}
"""Parameters of each entry point, in the order of its function."""

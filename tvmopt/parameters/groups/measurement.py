"""How accuracy and latency are measured."""

from __future__ import annotations

import dataclasses

from tvmopt.choices import AUTO, GOALS
from tvmopt.metrics.check import check_metric
from tvmopt.parameters.declare import Group, parameter


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
class ProfileParameters(Group):
    """How kernels are timed, and what their times are set beside."""

    baseline: str = parameter(
        AUTO,
        "version number or alias of the float32 build to set beside; auto: the newest version of "
        "the same ONNX model, shapes, target and threads; none: nothing",
    )
    calls: int = parameter(100, "timed calls of each model", least=5)

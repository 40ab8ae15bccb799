"""Trial zero: predict whether untuned TVM can be measured within its share of the time budget."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.errors import LimitError
from tvmopt.frontend.layers import Layer
from tvmopt.search.shares import BASELINE
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.in_child import model_layers
from tvmopt.tracking.pipeline.request import Request

# Untuned TVM computed 1.9 (ResNet-18) to 3.3 (EfficientNet-Lite0) of these on a Zen 3, see
# benchmarks/results/2026-11-21-workflow-default.md; a prediction is to be too short rather.
_UNTUNED_FLOPS_PER_S = 2.5e9
# Fewest calls of all stages: of the check in the build stage 1, for the accuracy 1, for the latency
# 5, in the process that measures memory 4.
_CALLS = 11
# Import and compilation of untuned TVM, see benchmarks/results/2026-11-27-search-cost.md: digits.
_COMPILE_S, _COMPILE_S_PER_LAYER = 2.0, 0.1


def check_can_end(request: Request, budget_s: float, allowance: Allowance) -> None:
    """Refuse a baseline that cannot end within its share, before it spends that.

    On a GPU or a board nothing is predicted.

    Args:
        request: Of the search.
        budget_s: Seconds of the study's budget.
        allowance: Bounds the process that lists the layers of the model.

    Raises:
        LimitError: The baseline is predicted to take longer; says how long.
    """
    if request.target.gpu is not None or request.board is not None:
        return
    layers = model_layers(request.model, request.convert.input_shapes, allowance)
    seconds, share_s = predicted_s(layers), BASELINE.seconds(budget_s)
    if seconds > share_s:
        raise LimitError(
            f"untuned TVM is not measured: it would take about {seconds:.0f} s, but may take "
            f"{share_s:.0f} s of the time_budget of {budget_s:.0f} s; the search goes on without a "
            "baseline",
            "timeout",
        )


def predicted_s(layers: Sequence[Layer]) -> float:
    """Return the predicted seconds to compile untuned TVM and to measure it, on an idle machine."""
    call_s = sum(layer.flops or 0 for layer in layers) / _UNTUNED_FLOPS_PER_S
    return _COMPILE_S + _COMPILE_S_PER_LAYER * len(layers) + _CALLS * call_s

"""Untuned TVM beside the candidate, where it can be measured within its share of a time budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvmopt.errors import AccuracyError, BuildError, LimitError, StageFailedError, TvmoptError
from tvmopt.frontend.layers import Layer
from tvmopt.search.shares import Share
from tvmopt.stages import comparison_table
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.in_child import model_layers
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import BASELINE, StagePipeline
from tvmopt.tracking.pipeline.time_shares import UNTUNED
from tvmopt.tracking.store.allowance import stage_allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.runs import log_tags
from tvmopt.tracking.store.stage_run import Session, StageOutput

# Untuned TVM computed 1.9 (ResNet-18) to 3.3 (EfficientNet-Lite0) of these on a Zen 3, see
# benchmarks/results/2026-11-21-workflow-default.md; a prediction is to be too short rather.
_UNTUNED_FLOPS_PER_S = 2.5e9
# Fewest calls of all stages: of the check in the build stage 1, for the accuracy 1, for the latency
# 5, in the process that measures memory 4.
_CALLS = 11
# Import and compilation of untuned TVM, see benchmarks/results/2026-11-27-search-cost.md: digits.
_COMPILE_S, _COMPILE_S_PER_LAYER = 2.0, 0.1


def compare_untuned(pipeline: StagePipeline) -> None:
    """Let evaluation measure untuned TVM, too; not where it takes too long, or its GPU rules fail.

    Untuned TVM may be a hundred times as slow as the candidate.
    """
    session, request = pipeline.session, pipeline.request
    try:
        pipeline.compared[comparison_table.UNTUNED] = _untuned(pipeline)
    except LimitError as error:
        if not request.divided_budget_s:
            raise
        _say_unmeasured(session, error)
    except (BuildError, AccuracyError, StageFailedError) as error:
        if request.target.gpu is None:
            raise
        _say_unmeasured(session, error)


def _untuned(pipeline: StagePipeline) -> StageOutput:
    """Return the build of untuned TVM, within its share of the budget where there is one.

    Raises:
        LimitError: It is predicted to take longer, or took longer.
    """
    session, request = pipeline.session, pipeline.request
    budget_s, allowance = request.divided_budget_s, session.allow()
    if not budget_s or request.build == request.baseline:
        return pipeline.run(BASELINE)
    check_can_end(request, UNTUNED, budget_s, allowance, "command")
    limited = stage_allowance(allowance.memory_mb, allowance.seconds, UNTUNED.seconds(budget_s))
    within = dataclasses.replace(session, allow=lambda: limited)
    return StagePipeline(within, request, pipeline.outputs).run(BASELINE)


def _say_unmeasured(session: Session, error: TvmoptError) -> None:
    say(f"{BASELINE:<18} not measured: {error}")
    tags = {"tvmopt.unmeasured.untuned_latency_ms_p50": str(error)[:250]}
    log_tags(session.client, session.run_id, tags)


def check_can_end(
    request: Request, share: Share, budget_s: float, allowance: Allowance, command: str
) -> None:
    """Refuse a baseline that cannot end within its share, before it spends that.

    On a GPU or a board nothing is predicted.

    Args:
        request: Of the command.
        share: What untuned TVM may take of the budget.
        budget_s: Seconds of the command's budget.
        allowance: Bounds the process that lists the layers of the model.
        command: The command in words, for the error.

    Raises:
        LimitError: The baseline is predicted to take longer; says how long.
    """
    if request.target.gpu is not None or request.board is not None:
        return
    layers = model_layers(request.model, request.convert.input_shapes, allowance)
    seconds, share_s = predicted_s(layers), share.seconds(budget_s)
    if seconds > share_s:
        raise LimitError(
            f"untuned TVM would take about {seconds:.0f} s, but may take "
            f"{share_s:.0f} s of the time_budget of {budget_s:.0f} s; the {command} goes on "
            "without a baseline",
            "timeout",
        )


def predicted_s(layers: Sequence[Layer]) -> float:
    """Return the predicted seconds to compile untuned TVM and to measure it, on an idle machine."""
    call_s = sum(layer.flops or 0 for layer in layers) / _UNTUNED_FLOPS_PER_S
    return _COMPILE_S + _COMPILE_S_PER_LAYER * len(layers) + _CALLS * call_s

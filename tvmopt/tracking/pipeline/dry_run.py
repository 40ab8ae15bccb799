"""Dry run: print the resolved parameters, and the stages that would run or be reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import yaml
from mlflow import MlflowClient

from tvmopt.skip_layers import SkipLayers
from tvmopt.tracking.pipeline.entry import resolved
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import BASELINE, StagePipeline
from tvmopt.tracking.store.command import looking
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.runs import log_tags
from tvmopt.tracking.store.stage_run import Planned, StageOutput


def say_plan(
    entry: str,
    request: Request,
    params: Mapping[str, object],
    steps: tuple[str, ...],
    *,
    use_cache: bool,
) -> None:
    """Print what an entry point would do; nothing is run, and no run is opened.

    Args:
        entry: Name of the entry point.
        request: Its request.
        params: Its parameters.
        steps: Steps that it ends with, of :data:`tvmopt.tracking.pipeline.steps.STEPS`.
        use_cache: Whether finished stages would be reused.
    """
    untuned = BASELINE in steps and request.is_measurable
    named = [step for step in steps if step != BASELINE or untuned]
    say_parameters(entry, resolved(params, request))
    with looking(request.name, use_cache=use_cache) as session:
        mark(session.client, session.run_id, entry)
        say()
        say_steps(StagePipeline(session, request).plan(*named, untuned=untuned))


def say_steps(plan: Iterable[tuple[Planned, StageOutput | None]]) -> None:
    """Print which steps would run, and which would be reused from which run."""
    for planned, found in plan:
        does = f"reused from run {found.run_id[:8]}" if found else "would run"
        say(f"{planned.name:<18} {does}, digest {planned.digest[:12]}")


def say_parameters(entry: str, values: Mapping[str, object]) -> None:
    """Print resolved parameters as YAML."""
    say(f"# {entry}: dry run, nothing is done")
    plain = {k: str(v) if isinstance(v, SkipLayers) else v for k, v in values.items()}
    say(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip())


def mark(client: MlflowClient, run_id: str, entry: str) -> None:
    """Tag the run that ``mlflow run`` has opened, if any: nothing was done in it."""
    if run_id:
        log_tags(client, run_id, {"tvmopt.entry_point": entry, "tvmopt.dry_run": "true"})

"""Entry points as Python functions: each stage, and ``main`` for all of them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.exceptions import MlflowException

from tvmopt import command_start
from tvmopt.choices import MEASURING
from tvmopt.errors import (
    AccuracyError,
    ArtifactError,
    BuildError,
    ConfigError,
    LimitError,
    PromotionRefusedError,
    StageFailedError,
)
from tvmopt.kernels.cuda.toolchain.modules import check_tools
from tvmopt.link import link_options
from tvmopt.parameters import commands
from tvmopt.parameters.call import entry_point
from tvmopt.stages.comparison_table import (
    CANDIDATE,
    REFERENCE,
    UNTUNED,
    WITHOUT_TUNING,
    read_table,
)
from tvmopt.stages.torch_peer import TORCH_PEERS
from tvmopt.stages.tune_files import DATABASE_DIR
from tvmopt.tracking.pipeline import report
from tvmopt.tracking.pipeline.dry_run import say_plan
from tvmopt.tracking.pipeline.entry import checked_request, open_session, register_built
from tvmopt.tracking.pipeline.next_map import SCREEN, has_maps, with_first_map, with_next_map
from tvmopt.tracking.pipeline.request import Asked, Request
from tvmopt.tracking.pipeline.steps import BASELINE, StagePipeline
from tvmopt.tracking.pipeline.tune_accepted import (
    tuned_and_untuned_ms,
    with_tuning,
    without_tuning,
)
from tvmopt.tracking.pipeline.untuned import compare_untuned
from tvmopt.tracking.registry.promotion import Promotion, promote_if_better
from tvmopt.tracking.registry.versions import Registered
from tvmopt.tracking.report import sentences
from tvmopt.tracking.report.tables import as_text, comparison
from tvmopt.tracking.store.allowance import stage_allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.missing import is_missing
from tvmopt.tracking.store.stage_run import Session, StageOutput
from tvmopt.tracking.store.trust import checked_artifacts
from tvmopt.tune.database import DatabaseKey, canonical_target, check_key


@dataclasses.dataclass(frozen=True)
class MainResult:
    """Result of :func:`main`.

    Attributes:
        run_id: The command's run.
        name: Registered model.
        version: Its version.
        champion: Whether the version has the alias ``champion`` now.
        reused: Stages that were linked, not done.
        table: The comparison table as text.
    """

    run_id: str
    name: str
    version: str
    champion: bool
    reused: tuple[str, ...]
    table: str


def _planned(entry: str, *steps: str) -> Callable[[commands.StageCommand], None]:
    """Return the dry run of an entry point that ends with ``steps``."""

    def dry_run(command: commands.StageCommand) -> None:
        allowance = stage_allowance(command.limits.memory_limit, command.limits.stage_timeout)
        asked = checked_request(Asked.by(command), allowance)
        request = without_tuning(asked) if entry == "main" else asked
        named = (SCREEN, *steps) if entry == "main" and has_maps(request) else steps
        say_plan(entry, request, command.values(), named, use_cache=not command.reuse.no_cache)
        if request is not asked:
            say(f"{'tuning':<18} follows where the model keeps the accuracy: {asked.tune.strategy}")

    return dry_run


@contextmanager
def _opened(
    entry: str, command: commands.StageCommand, *, builds: bool = False
) -> Iterator[StagePipeline]:
    """Check the parameters, open the command's run, and yield the pipeline."""
    allowance = stage_allowance(command.limits.memory_limit, command.limits.stage_timeout)
    request = checked_request(Asked.by(command), allowance)
    if builds:
        _check_tools(request)
    with open_session(
        entry,
        request,
        command.values(),
        use_cache=not command.reuse.no_cache,
        allowance=allowance,
    ) as session:
        yield StagePipeline(session, request)


@entry_point(commands.MainCommand, dry_run=_planned("main", BASELINE, "evaluate"))
def main(command: commands.MainCommand) -> MainResult:
    """Convert, tune, build, evaluate, register and promote a model.

    Without a model, the bundled example is used.

    Raises:
        TvmoptError: One line that says what to do; :class:`PromotionRefusedError` when the model
            was built and registered but does not meet ``max_accuracy_drop``.
    """
    began = command_start.began()
    with _opened("main", command, builds=True) as pipeline:
        asked = pipeline.request
        budget_s = asked.divided_budget_s

        def left_s() -> float:
            return budget_s - (time.monotonic() - began) if budget_s else math.inf

        pipeline = with_first_map(StagePipeline(pipeline.session, without_tuning(asked)), left_s)
        pipeline.run("build")
        if asked.is_measurable:
            compare_untuned(pipeline)
        judged = _judged(pipeline)
        while judged.refused is not None:
            following = with_next_map(pipeline, judged.refused, left_s)
            if following is None:
                break
            say(f"{'dtypes':<18} {judged.promoted.words}")
            say(f"{'':<18} the next map of dtypes is expected to lose less: it is built instead")
            pipeline, judged = following, _judged(following)
        if judged.refused is None:
            pipeline, judged = _tuned(pipeline, judged, asked, left_s())
        session, registered = pipeline.session, judged.registered
        reused = tuple(s.stage for s in pipeline.outputs if s.cached)
        report.say_end(session, pipeline.request, registered, judged.promoted, reused)
        if judged.refused is not None:
            raise judged.refused
        return MainResult(
            session.run_id,
            registered.name,
            registered.version,
            judged.promoted.done,
            reused,
            judged.table,
        )


@dataclasses.dataclass(frozen=True)
class _Judged:
    """A registered version, what came of it, and the comparison table as text.

    Attributes:
        registered: The version.
        promoted: Whether it is the champion, and why.
        refused: Why it is not accurate enough; None where it is.
        table: The comparison.
        seconds: What evaluation, registration and promotion took.
    """

    registered: Registered
    promoted: Promotion
    refused: PromotionRefusedError | None
    table: str
    seconds: float


def _tuned(
    pipeline: StagePipeline, accepted: _Judged, asked: Request, left_s: float
) -> tuple[StagePipeline, _Judged]:
    """Tune an accepted model, where that is to follow; return the faster of both builds."""
    tuned = with_tuning(pipeline, asked, left_s, accepted.seconds)
    if tuned is None:
        return pipeline, accepted
    version = accepted.registered.version
    say(f"{'tuning':<18} version {version} keeps the accuracy: it is tuned in the time left")
    try:
        tuned_ms, untuned_ms = tuned_and_untuned_ms(tuned)
    except (BuildError, AccuracyError, LimitError, StageFailedError) as error:
        say(f"{'tuning':<18} failed, version {version} stays: {error}")
        return pipeline, accepted
    if tuned_ms >= untuned_ms:
        found = f"p50 {tuned_ms:.3g} ms tuned, {untuned_ms:.3g} ms without tuning"
        say(f"{'tuning':<18} {found}: version {version} stays")
        return pipeline, accepted
    judged = _judged(tuned, beats_champion=accepted.promoted.done)
    if judged.refused is None:
        return tuned, judged
    say(f"{'tuning':<18} {judged.promoted.words}")
    return pipeline, accepted


def _judged(pipeline: StagePipeline, *, beats_champion: bool = False) -> _Judged:
    """Build, evaluate, register, and promote if it earns it.

    Args:
        pipeline: Of the build.
        beats_champion: Whether it was faster than the champion, side by side.
    """
    session, request = pipeline.session, pipeline.request
    built = pipeline.run("build")
    start = time.monotonic()
    measured = pipeline.run("evaluate")
    names = {
        CANDIDATE: report.variant_of(request),
        WITHOUT_TUNING: "without tuning",
        UNTUNED: "untuned TVM",
        REFERENCE: "ONNX Runtime fp32",
        **{label: f"torch.compile {dtype}" for label, dtype in TORCH_PEERS.items()},
    }
    table = comparison(read_table(measured.folder), names)
    report.log_comparison(session, measured, table)
    registered = register_built(session, request, pipeline.run("convert"), built, measured)
    say()
    say(as_text(table))
    say()
    promoted, refused = _promote(session, request, registered, measured, beats_champion)
    report.log_note(session, registered, promoted, table)
    return _Judged(registered, promoted, refused, as_text(table), time.monotonic() - start)


def _promote(
    session: Session,
    request: Request,
    registered: Registered,
    measured: StageOutput,
    beats_champion: bool,
) -> tuple[Promotion, PromotionRefusedError | None]:
    """Promote a version if it earns it; return what came of it, and the refusal."""
    if not request.is_measurable:
        target = request.target
        where = (registered.name, registered.version, target.device, target.gpu is not None)
        return Promotion(False, sentences.unproven_words(*where)), None
    try:
        _check_bar(request, measured)
        promoted = promote_if_better(
            session.client,
            registered,
            data=request.data,
            max_accuracy_drop=request.max_accuracy_drop,
            work_dir=session.work_dir,
            metric=request.asked.metric,
            evidence=measured.digest,
            compared=beats_champion,
            board=request.board,
            allowance=session.allow(),
            run_id=session.run_id,
        )
    except PromotionRefusedError as error:
        return Promotion(False, str(error)), error
    return promoted, None


@entry_point(commands.SensitivityCommand, dry_run=_planned("sensitivity", "sensitivity"))
def sensitivity(command: commands.SensitivityCommand) -> StageOutput:
    """Measure accuracy loss and gain of each layer in each dtype, and propose skip sets."""
    with _opened("sensitivity", command) as pipeline:
        return pipeline.run("sensitivity", own=True)


@entry_point(commands.ConvertCommand, dry_run=_planned("convert", "convert"))
def convert(command: commands.ConvertCommand) -> StageOutput:
    """Convert and check a model; return the run of the convert stage."""
    with _opened("convert", command) as pipeline:
        return pipeline.run("convert", own=True)


@entry_point(commands.TuneCommand, dry_run=_planned("tune", "tune"))
def tune(command: commands.TuneCommand) -> StageOutput:
    """Find schedules for a model; runs missing stages before it.

    Raises:
        DatabaseMismatchError: When the database of ``warm_start`` is for another target, number of
            threads, version of TVM or granularity; before anything is converted.
    """
    with _opened("tune", command) as pipeline:
        if run_id := command.warm_start.warm_start:
            pipeline.warm_start(_tune_run(pipeline.session, pipeline.request, run_id), DATABASE_DIR)
        return pipeline.run("tune", own=True)


@entry_point(commands.BuildCommand, dry_run=_planned("build", "build"))
def build(command: commands.BuildCommand) -> StageOutput:
    """Compile a model and register it as a candidate; runs missing stages before it."""
    with _opened("build", command, builds=True) as pipeline:
        built = pipeline.run("build", own=True)
        converted = pipeline.run("convert")
        registered = register_built(pipeline.session, pipeline.request, converted, built, None)
        say(f"registered models:/{registered.name}/{registered.version} as candidate")
        return built


@entry_point(commands.EvaluateCommand, dry_run=_planned("evaluate", "evaluate"))
def evaluate(command: commands.EvaluateCommand) -> StageOutput:
    """Measure a model against ONNX Runtime; runs missing stages before it."""
    with _opened("evaluate", command, builds=True) as pipeline:
        measured = pipeline.run("evaluate", own=True)
        variant = report.variant_of(pipeline.request)
        names = {CANDIDATE: variant, REFERENCE: "ONNX Runtime fp32"}
        say()
        say(as_text(comparison(read_table(measured.folder), names)))
        return measured


def _check_tools(request: Request) -> None:
    """Raise early when no linker for the target is available."""
    if request.target.mtriple:
        link_options(request.target.isa)
    if request.target.gpu is not None:
        link_options()
        check_tools()


def _tune_run(session: Session, request: Request, run_id: str) -> StageOutput:
    try:
        run = session.client.get_run(run_id)
    except MlflowException as error:
        if not is_missing(error):
            raise
        raise ConfigError(f"warm_start must be the id of a tune run, but got {run_id!r}") from error
    no_database = ConfigError(
        "warm_start must be the id of a tune run with a database (strategy=fast or "
        f"metaschedule), but got {run_id!r}"
    )
    if run.data.tags.get("tvmopt.stage") != "tune":
        raise no_database
    try:
        folder = checked_artifacts(session.client, run, "tune", session.work_dir)
    except ArtifactError as error:
        raise ConfigError(
            "warm_start must be intact, and signed where there is a key, but "
            f"{run_id!r} is not: {error}"
            "; tune again without it"
        ) from error
    if not (folder / DATABASE_DIR).is_dir():
        raise no_database
    if request.tune.strategy in MEASURING:
        _check_database(folder / DATABASE_DIR, request)
    return StageOutput.of_run("tune", run, folder)


def _check_database(folder: Path, request: Request) -> None:
    """Raise early when the tune stage would refuse a database."""
    target, granularity = request.target, request.tune.granularity
    llvm = canonical_target(target.to_tvm())
    check_key(folder, DatabaseKey(llvm, target.threads, granularity=granularity))


def _check_bar(request: Request, measured: StageOutput) -> None:
    drop = measured.metrics["accuracy_drop"]
    if not drop <= request.max_accuracy_drop:
        raise PromotionRefusedError(
            f"the model is not promoted: accuracy drop must be at most "
            f"{request.max_accuracy_drop:g}, but it is {drop:.4f} on the evaluation samples; "
            "raise max_accuracy_drop if that is good enough",
            drop=drop,
        )

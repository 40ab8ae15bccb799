"""Entry points as Python functions: each stage, and ``main`` for all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tvmopt.config import MEASURING
from tvmopt.errors import (
    AccuracyError,
    ArtifactError,
    BuildError,
    ConfigError,
    PromotionRefusedError,
    StageFailedError,
)
from tvmopt.kernels.cuda.toolchain.modules import check_tools
from tvmopt.link import link_options
from tvmopt.stages.evaluate import CANDIDATE, REFERENCE, UNTUNED, read_table
from tvmopt.stages.tune import DATABASE_DIR
from tvmopt.tracking import pipeline, promotion
from tvmopt.tracking.console import say
from tvmopt.tracking.entry import checked_request, open_session, register_built, with_example
from tvmopt.tracking.report import main as report
from tvmopt.tracking.report.facts import Promotion, PromotionRefused, Unproven
from tvmopt.tracking.report.tables import as_text, comparison
from tvmopt.tracking.request import Request
from tvmopt.tracking.runs import log_tags
from tvmopt.tracking.stage_run import Session, StageOutput
from tvmopt.tracking.trust import checked_artifacts
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


def main(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    strategy: str = "fast",
    granularity: str = "subgraph",
    topk: int = 20,
    trials: int = 64,
    time_budget: float = 0.0,
    metric: str = "auto",
    repeats: int = 200,
    rpc_tracker: str = "",
    rpc_key: str = "",
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> MainResult:
    """Convert, tune, build, evaluate, register and promote a model.

    Without a model, the bundled example is used. Parameters are as in MLproject.

    Raises:
        TvmoptError: One line that says what to do; :class:`PromotionRefusedError` when the model
            was built and registered but does not meet ``max_accuracy_drop``.
    """
    params = with_example(dict(locals()))
    request = checked_request(params)
    _check_tools(request)
    with open_session("main", request, params, no_cache) as session:
        converted = pipeline.convert_stage(session, request)
        tuned = pipeline.tune_stage(session, request, converted)
        built = pipeline.build_stage(session, request, converted, tuned)
        baseline = None
        if request.is_measurable:
            baseline = _baseline(session, request, converted)
        measured = pipeline.evaluate_stage(session, request, converted, built, baseline)
        stages = [converted, tuned, built, *([baseline] if baseline else []), measured]

        names = {
            CANDIDATE: report.variant_of(request),
            UNTUNED: "untuned TVM",
            REFERENCE: "ONNX Runtime fp32",
        }
        table = comparison(read_table(measured.folder), names)
        report.log_comparison(session, measured, table)
        registered = register_built(session, request, converted, built, measured)
        say()
        say(as_text(table))
        say()
        refused = None
        try:
            if request.is_measurable:
                _check_bar(request, measured)
                promoted = promotion.promote_if_better(
                    session.client,
                    registered,
                    data=request.data,
                    max_accuracy_drop=request.max_accuracy_drop,
                    work_dir=session.work_dir,
                    evidence=measured.digest,
                    board=request.board,
                    allowance=session.allow(),
                    run_id=session.run_id,
                )
            else:
                unproven = Unproven(
                    registered.name, registered.version, request.target.device,
                    request.target.gpu is not None,
                )  # fmt: skip
                promoted = Promotion(False, unproven)
        except PromotionRefusedError as error:
            promoted, refused = Promotion(False, PromotionRefused(str(error))), error
        report.log_note(session, registered, promoted, table)
        reused = tuple(s.stage for s in stages if s.cached)
        report.say_end(session, request, registered, promoted, reused)
        if refused is not None:
            raise refused
        return MainResult(
            session.run_id,
            registered.name,
            registered.version,
            promoted.done,
            reused,
            as_text(table),
        )


def sensitivity(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    dtypes: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    sensitivity_time: float = 120.0,
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> StageOutput:
    """Measure accuracy loss and gain of each layer in each dtype, and propose skip sets."""
    params = with_example(dict(locals()))
    request = checked_request(params)
    with open_session("sensitivity", request, params, no_cache) as session:
        return pipeline.sensitivity_stage(session, request, own=True)


def convert(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> StageOutput:
    """Convert and check a model; return the run of the convert stage."""
    params = with_example(dict(locals()))
    request = checked_request(params)
    with open_session("convert", request, params, no_cache) as session:
        return pipeline.convert_stage(session, request, own=True)


def tune(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    strategy: str = "fast",
    granularity: str = "subgraph",
    topk: int = 20,
    trials: int = 64,
    time_budget: float = 0.0,
    rpc_tracker: str = "",
    rpc_key: str = "",
    warm_start: str = "",
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> StageOutput:
    """Find schedules for a model; runs missing stages before it.

    ``warm_start`` is the id of an earlier tune run whose database the search begins from.

    Raises:
        DatabaseMismatchError: When that database is for another target, number of threads,
            version of TVM or granularity; before anything is converted.
    """
    params = with_example(dict(locals()))
    params.pop("warm_start")
    request = checked_request(params)
    with open_session("tune", request, {**params, "warm_start": warm_start}, no_cache) as session:
        earlier = _tune_run(session, request, warm_start) if warm_start else None
        converted = pipeline.convert_stage(session, request)
        return pipeline.tune_stage(session, request, converted, earlier, own=True)


def build(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    strategy: str = "fast",
    granularity: str = "subgraph",
    topk: int = 20,
    trials: int = 64,
    time_budget: float = 0.0,
    rpc_tracker: str = "",
    rpc_key: str = "",
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> StageOutput:
    """Compile a model and register it as a candidate; runs missing stages before it."""
    params = with_example(dict(locals()))
    request = checked_request(params)
    _check_tools(request)
    with open_session("build", request, params, no_cache) as session:
        converted = pipeline.convert_stage(session, request)
        tuned = pipeline.tune_stage(session, request, converted)
        built = pipeline.build_stage(session, request, converted, tuned, own=True)
        registered = register_built(session, request, converted, built, None)
        say(f"registered models:/{registered.name}/{registered.version} as candidate")
        return built


def evaluate(
    model: str = "",
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    max_accuracy_drop: float = 0.01,
    strategy: str = "fast",
    granularity: str = "subgraph",
    topk: int = 20,
    trials: int = 64,
    time_budget: float = 0.0,
    metric: str = "auto",
    repeats: int = 200,
    rpc_tracker: str = "",
    rpc_key: str = "",
    stage_timeout: float = 7200.0,
    memory_limit: float = 0.0,
    no_cache: bool = False,
) -> StageOutput:
    """Measure a model against ONNX Runtime; runs missing stages before it."""
    params = with_example(dict(locals()))
    request = checked_request(params)
    _check_tools(request)
    with open_session("evaluate", request, params, no_cache) as session:
        converted = pipeline.convert_stage(session, request)
        tuned = pipeline.tune_stage(session, request, converted)
        built = pipeline.build_stage(session, request, converted, tuned)
        measured = pipeline.evaluate_stage(session, request, converted, built, None, own=True)
        names = {CANDIDATE: report.variant_of(request), REFERENCE: "ONNX Runtime fp32"}
        say()
        say(as_text(comparison(read_table(measured.folder), names)))
        return measured


def _baseline(session: Session, request: Request, converted: StageOutput) -> StageOutput | None:
    """Return the untuned TVM baseline; None where TVM's GPU rules fail."""
    try:
        return pipeline.baseline_stage(session, request, converted)
    except (BuildError, AccuracyError, StageFailedError) as error:
        if request.target.gpu is None:
            raise
        say(f"{'build-' + UNTUNED:<18} failed: {error}")
        tags = {"tvmopt.unmeasured.untuned_latency_ms_p50": str(error)[:250]}
        log_tags(session.client, session.run_id, tags)
        return None


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
    except Exception as error:
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
            "raise max_accuracy_drop if that is good enough"
        )

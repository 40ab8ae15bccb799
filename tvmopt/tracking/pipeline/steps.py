"""The pipeline as one list of steps; each is reused or run after the steps that it needs.

[calibrate -> [sensitivity -> [screen]]] -> convert -> tune -> build -> evaluate
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.config import ScreenConfig, StageConfig, TuneConfig
from tvmopt.device import cuda_runtime
from tvmopt.digest import sha256_text, stage_digest
from tvmopt.kernels.cuda.toolchain import compiler
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.stages.comparison_table import CANDIDATE, UNTUNED
from tvmopt.stages.registry import STAGES
from tvmopt.stages.torch_peer import torch_version
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.screen_config import screen_config
from tvmopt.tracking.store.stage_run import Planned, Session, StageOutput, find_finished, run_stage


@dataclasses.dataclass(frozen=True)
class Need:
    """Output of another step that a step reads.

    Attributes:
        step: Name of that step.
        role: Role of its digest.
        files: Role of its files; empty for the role of the digest.
        folder: Folder in its output; empty for all of it.
    """

    step: str
    role: str
    files: str = ""
    folder: str = ""


@dataclasses.dataclass(frozen=True)
class PipelineStep:
    """One step: a stage, its configuration, and what it reads.

    Attributes:
        stage: Name of the stage.
        config: Gives its configuration for a request.
        needs: Gives the other steps whose output it reads.
        label: Distinguishes steps of one stage.
        reads_model: Whether it reads the ONNX file.
        reads_data: Whether it reads the user's data.
    """

    stage: str
    config: Callable[[Request], StageConfig]
    needs: Callable[[Request], tuple[Need, ...]] = lambda request: ()
    label: str = ""
    reads_model: bool = False
    reads_data: bool = False

    @property
    def name(self) -> str:
        """Return its name: the stage, with the label."""
        return f"{self.stage}-{self.label}" if self.label else self.stage


def _for_sensitivity(request: Request) -> tuple[Need, ...]:
    return (_CALIBRATED,) if "int8" in request.sensitivity.dtypes else ()


def _for_convert(request: Request) -> tuple[Need, ...]:
    calibrated = (_CALIBRATED,) if request.needs_calibration else ()
    sensitive = (Need("sensitivity", "sensitivity"),) if request.needs_sensitivity else ()
    return (*calibrated, *sensitive)


_CALIBRATED, _CONVERTED = Need("calibrate", "calibrate"), Need("convert", "convert")
#: Name of the build of TVM's own pipeline, without our schedules.
BASELINE = f"build-{UNTUNED}"

STEPS: dict[str, PipelineStep] = {
    step.name: step
    for step in (
        PipelineStep(
            "calibrate", lambda r: r.calibrate, reads_model=True, reads_data=True
        ),
        PipelineStep(
            "sensitivity", lambda r: r.sensitivity, _for_sensitivity, reads_model=True,
            reads_data=True,
        ),
        PipelineStep(
            "screen", screen_config, _for_convert, reads_model=True, reads_data=True
        ),
        PipelineStep(
            "convert", lambda r: r.convert, _for_convert, reads_model=True, reads_data=True
        ),
        PipelineStep("tune", lambda r: r.tune, lambda r: (_CONVERTED,)),
        PipelineStep("build", lambda r: r.build, lambda r: (_CONVERTED, Need("tune", "tune"))),
        PipelineStep("build", lambda r: r.baseline, lambda r: (_CONVERTED,), label=UNTUNED),
        PipelineStep(
            "evaluate", lambda r: r.evaluate,
            lambda r: (_CONVERTED, Need("build", CANDIDATE, f"bundle:{CANDIDATE}", BUNDLE_DIR)),
            reads_data=True,
        ),
    )
}  # fmt: skip
"""The steps by name, each after the ones that it may need."""


class StagePipeline:
    """The steps of one request in one session; each is done at most once.

    Args:
        session: What the stages of the command share.
        request: The request.
        known: Outputs of steps that another pipeline of the command has done for this request.
    """

    def __init__(
        self, session: Session, request: Request, known: Sequence[StageOutput] = ()
    ) -> None:
        self.session, self.request = session, request
        self._done = {output.stage: output for output in known}
        self._more: dict[str, dict[Need, StageOutput]] = {}
        self._most_tuning_s = 0.0
        self._limits_s: dict[str, float] = {}
        #: Whether the screen stage may take a faster map of dtypes than the request's.
        self.takes_faster_maps = True
        #: Most accuracy drop of the map that the screen stage takes; None for the request's.
        self.screen_limit: float | None = None
        #: Builds that evaluation measures, too, by label.
        self.compared: dict[str, StageOutput] = {}

    @property
    def outputs(self) -> tuple[StageOutput, ...]:
        """Return the outputs of the steps that were done, in order."""
        return tuple(self._done.values())

    def changed(self, kept: Sequence[str], **values: Any) -> StagePipeline:
        """Return a pipeline with other values of some parameters.

        Args:
            kept: Stages whose output the values do not change; they are not run again.
            values: Parameters by name.
        """
        known = [output for output in self.outputs if output.stage in kept]
        return StagePipeline(self.session, self.request.changed(**values), known)

    def warm_start(self, tuned: StageOutput, folder: str) -> None:
        """Let tuning begin from the database in ``folder`` of an earlier tune run."""
        self._more["tune"] = {Need("", "warm_start", folder=folder): tuned}

    def limit_time(self, stage: str, seconds: float) -> None:
        """Let a stage take ``seconds`` in place of its share of the budget; its digest stays.

        Args:
            stage: Name of the stage: tune or screen.
            seconds: Its time limit.
        """
        self._limits_s[stage] = seconds

    def bound_tuning(self, seconds: float) -> None:
        """Let tuning that has no time budget take ``seconds`` at most, as its digest says."""
        self._most_tuning_s = seconds

    def run(self, name: str, *, own: bool = False, earlier: Sequence[Path] = ()) -> StageOutput:
        """Reuse or run a step, after the steps that it needs.

        Args:
            name: Name of the step.
            own: Whether the command's own run is the run of the step; else it is a child of it.
            earlier: Tuning databases whose records are not measured again; they change no digest.
        """
        if name not in self._done:
            step = STEPS[name]
            needed = {need: self.run(need.step) for need in step.needs(self.request)}
            needed |= self._more.get(name, {})
            if step.stage == "evaluate":
                needed |= _compared(self.compared, self.run("build"))
            planned = _planned(step, self.request, needed, self._config(step))
            files = {f"earlier:{place}": path for place, path in enumerate(earlier)}
            if not STAGES[step.stage].measures(planned.config):
                files = {}
            tags = {"tvmopt.granularity": self.request.tune.granularity}
            self._done[name] = run_stage(
                self.session,
                dataclasses.replace(
                    planned,
                    config=self._limited(step.stage, planned.config),
                    inputs={**planned.inputs, **files},
                ),
                own=own,
                tags=tags if step.stage in ("tune", "build") and not step.label else {},
            )
        return self._done[name]

    def _config(self, step: PipelineStep) -> StageConfig:
        """Return the configuration of a step, with what bounds it in this pipeline."""
        config = step.config(self.request)
        if isinstance(config, TuneConfig) and not config.time_budget:
            return dataclasses.replace(config, time_budget=self._most_tuning_s)
        if isinstance(config, ScreenConfig):
            least = config.least if self.takes_faster_maps else config.first
            limit = config.max_accuracy_drop if self.screen_limit is None else self.screen_limit
            return dataclasses.replace(config, least=least, max_accuracy_drop=limit)
        return config

    def _limited(self, stage: str, config: StageConfig) -> StageConfig:
        """Return the configuration of a stage within its limit, where both have one."""
        seconds = self._limits_s.get(stage)
        if seconds and isinstance(config, TuneConfig) and config.time_budget:
            return dataclasses.replace(config, time_budget=seconds)
        if seconds and isinstance(config, ScreenConfig) and config.time_limit_s:
            return dataclasses.replace(config, time_limit_s=seconds)
        return config

    def plan(
        self, *names: str, untuned: bool = False
    ) -> Iterator[tuple[Planned, StageOutput | None]]:
        """Yield what running steps would do, and what would be reused; run nothing.

        Args:
            names: The steps.
            untuned: Whether evaluation measures untuned TVM, too.
        """
        outputs: dict[str, StageOutput] = {}
        steps = {s.name: s for name in names for s in _before(STEPS[name], self.request)}
        for step in steps.values():
            needed = {need: outputs[need.step] for need in step.needs(self.request)}
            needed |= self._more.get(step.name, {})
            if step.stage == "evaluate" and untuned:
                needed |= _compared({UNTUNED: outputs[BASELINE]}, outputs["build"])
            plan = _planned(step, self.request, needed, self._config(step))
            found = find_finished(self.session, plan) if self.session.use_cache else None
            nothing = StageOutput(step.name, plan.digest, "", Path(), {}, cached=False)
            outputs[step.name] = found or nothing
            yield plan, found


def _compared(builds: Mapping[str, StageOutput], candidate: StageOutput) -> dict[Need, StageOutput]:
    """Return what evaluation reads of other builds, by label; nothing of the candidate itself."""
    return {
        Need(built.stage, label, f"bundle:{label}", BUNDLE_DIR): built
        for label, built in builds.items()
        if built.digest != candidate.digest
    }


def _before(step: PipelineStep, request: Request) -> list[PipelineStep]:
    """Return the steps that ``step`` needs, in order, and itself."""
    found = [s for need in step.needs(request) for s in _before(STEPS[need.step], request)]
    return list({s.name: s for s in [*found, step]}.values())


def _planned(
    step: PipelineStep,
    request: Request,
    needed: Mapping[Need, StageOutput],
    config: StageConfig,
) -> Planned:
    inputs, digests = {}, {}
    if step.reads_model:
        inputs["model"], digests["model"] = request.model, request.model_digest
    for need, output in needed.items():
        inputs[need.files or need.role] = output.folder / need.folder
        digests[need.role] = output.digest
    if step.reads_data and request.data is not None:
        inputs["data"], digests["data"] = request.data, request.data_digest
    if step.stage == "evaluate":
        add_torch_peer(request, inputs, digests)
    return plan_stage(request, step.stage, config, digests, inputs, label=step.label)


def add_torch_peer(request: Request, inputs: dict[str, Path], digests: dict[str, str]) -> None:
    """Let an evaluation on a GPU measure torch.compile, too, where the model is PyTorch's.

    Args:
        request: The request.
        inputs: Inputs of the evaluation by role; gets one more.
        digests: Their digests.
    """
    if request.torch_source is not None and request.target.gpu is not None:
        inputs["torch_source"] = request.torch_source
        digests["torch_source"] = sha256_text(f"{request.model_digest} {torch_version()}")


def plan_stage(
    request: Request,
    stage: str,
    config: StageConfig,
    input_digests: Mapping[str, str],
    inputs: Mapping[str, Path],
    *,
    label: str = "",
) -> Planned:
    """Return a stage with its digest.

    Args:
        request: The request that it serves.
        stage: Name of the stage.
        config: What it is asked.
        input_digests: Digests of the inputs, by role.
        inputs: Files and folders to read, by role.
        label: Distinguishes stages of one name.
    """
    identity = {**config.to_dict(), **_circumstances(stage, config, request)}
    name = f"{stage}-{label}" if label else stage
    digest = stage_digest(stage, identity, input_digests)
    return Planned(stage, name, config, digest, input_digests, inputs)


def _circumstances(stage: str, config: StageConfig, request: Request) -> dict[str, object]:
    """Return the facts beside configuration and inputs that a stage's result depends on."""
    facts: dict[str, Callable[[], object]] = {"host": host.fingerprint}
    if request.target.gpu is not None:
        # A machine may get its GPU later.
        facts |= {"gpu": cuda_runtime.describe, "cuda": compiler.version,
                  "checked": lambda: request.is_measurable}  # fmt: skip
    return {fact: facts[fact]() for fact in STAGES[stage].depends_on(config) if fact in facts}

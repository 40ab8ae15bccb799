"""The stages, one row each: configuration, function, inputs, and what a result depends on.

A stage is a function from a configuration and input files to a :class:`StageResult` and files in
its output folder. :mod:`tvmopt.stages.child` runs it in a new process.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvmopt import config as configs
from tvmopt.choices import MEASURING
from tvmopt.stages.result import Progress, StageResult


@dataclasses.dataclass(frozen=True)
class StageCall:
    """Arguments of a stage.

    Attributes:
        config: Its configuration, or a mapping of values where it has no configuration type.
        inputs: Input files and folders by role.
        digest: Digest of the stage.
        out_dir: Empty folder for its files.
        progress: Called as it works.
    """

    config: Any
    inputs: Mapping[str, Path]
    digest: str
    out_dir: Path
    progress: Progress


Argument = Callable[[StageCall], Any]
"""Picks one argument of a stage's function from a call."""


@dataclasses.dataclass(frozen=True)
class Input:
    """Input files of a stage, as an argument of its function.

    Attributes:
        role: Their role.
        optional: Whether the argument is None where there is none.
    """

    role: str
    optional: bool = False

    def __call__(self, call: StageCall) -> Path | None:
        """Return the path; None for an optional one that is missing."""
        return call.inputs.get(self.role) if self.optional else call.inputs[self.role]


@dataclasses.dataclass(frozen=True)
class InputGroup:
    """Input files of all roles with a prefix, as one argument: a mapping by the rest of the role.

    Attributes:
        role: The prefix, such as ``"bundle:"``.
    """

    role: str

    def __call__(self, call: StageCall) -> dict[str, Path]:
        """Return the paths by the rest of their role."""
        found = call.inputs.items()
        return {k.removeprefix(self.role): path for k, path in found if k.startswith(self.role)}


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: Its name.
        function: ``"module:function"``; imported when it runs, because it imports the compiler.
        config: Type of its configuration; None where ``arguments`` pick single values.
        arguments: Arguments of the function, in order.
        measures: Whether concurrent work on the machine would change the result.
        depends_on: Facts outside of configuration and inputs that are part of the digest:
            ``"host"``, this machine; for GPU targets also ``"gpu"``, this machine's GPU,
            ``"cuda"``, the version of CUDA's compiler, and ``"checked"``, whether this machine can
            run the library.
        links: Whether it links libraries.
    """

    name: str
    function: str
    config: type[configs.StageConfig] | None
    arguments: tuple[Argument, ...]
    measures: Callable[[configs.StageConfig], bool] = lambda config: False
    depends_on: Callable[[configs.StageConfig], tuple[str, ...]] = lambda config: ()
    links: bool = False

    @property
    def module(self) -> str:
        """Return the name of the module of its function."""
        return self.function.partition(":")[0]

    @property
    def inputs(self) -> tuple[Input | InputGroup, ...]:
        """Return what the stage reads."""
        return tuple(one for one in self.arguments if isinstance(one, Input | InputGroup))

    def run(self, call: StageCall) -> StageResult:
        """Run the stage in this process; ``call.config`` is what ``to_dict()`` gave."""
        if self.config is not None:
            call = dataclasses.replace(call, config=self.config.from_dict(call.config))
        name = self.function.partition(":")[2]
        function: Callable[..., StageResult] = getattr(importlib.import_module(self.module), name)
        return function(*(pick(call) for pick in self.arguments))


def _always(config: configs.StageConfig) -> bool:
    return True


def _measures_candidates(config: configs.StageConfig) -> bool:
    return isinstance(config, configs.TuneConfig) and config.strategy in MEASURING


def _value(name: str) -> Argument:
    return lambda call: call.config[name]


def _config(call: StageCall) -> Any:
    return call.config


def _digest(call: StageCall) -> str:
    return call.digest


def _out_dir(call: StageCall) -> Path:
    return call.out_dir


def _progress(call: StageCall) -> Progress:
    return call.progress


_MODEL, _CONVERT, _BUNDLE = Input("model"), Input("convert"), Input("bundle")
_DATA, _CALIBRATE = Input("data", optional=True), Input("calibrate", optional=True)

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "calibrate", "tvmopt.stages.calibrate:calibrate", configs.CalibrateConfig,
            (_config, _MODEL, _out_dir, _progress, _DATA),
        ),
        Stage(
            "sensitivity", "tvmopt.stages.sensitivity:sensitivity", configs.SensitivityConfig,
            (_config, _MODEL, _out_dir, _progress, _DATA, _CALIBRATE),
            measures=_always, depends_on=lambda config: ("host", "gpu"),
        ),
        Stage(
            "screen", "tvmopt.stages.screen:screen", configs.ScreenConfig,
            (_config, _MODEL, Input("sensitivity"), _out_dir, _progress, _DATA, _CALIBRATE),
            measures=_always, depends_on=lambda config: ("host",),
        ),
        Stage(
            "convert", "tvmopt.stages.convert:convert", configs.ConvertConfig,
            (_config, _MODEL, _out_dir, _progress, _DATA, _CALIBRATE,
             Input("sensitivity", optional=True)),
            depends_on=lambda config: ("checked",), links=True,
        ),
        Stage(
            "tune", "tvmopt.stages.tune:tune", configs.TuneConfig,
            (_config, _CONVERT, _out_dir, _progress, Input("warm_start", optional=True),
             InputGroup("earlier:")),
            measures=_measures_candidates,
            depends_on=lambda config: ("host", "gpu") if _measures_candidates(config) else (),
        ),
        Stage(
            "build", "tvmopt.stages.build:build", configs.BuildConfig,
            (_config, _CONVERT, Input("tune", optional=True), _digest, _out_dir, _progress),
            depends_on=lambda config: ("cuda", "checked"), links=True,
        ),
        Stage(
            "evaluate", "tvmopt.stages.evaluate:evaluate", configs.EvaluateConfig,
            (_config, _CONVERT, InputGroup("bundle:"), _out_dir, _progress, _DATA,
             Input("torch_source", optional=True)),
            measures=_always, depends_on=lambda config: ("host", "gpu"),
        ),
        Stage(
            "profile", "tvmopt.stages.profile:profile", configs.ProfileConfig,
            (_config, InputGroup("convert:"), InputGroup("tune:"), InputGroup("bundle:"), _out_dir,
             _progress),
            measures=_always, depends_on=lambda config: ("host",),
        ),
        # The others check files that are not trusted; they are no runs.
        Stage(
            "prepare", "tvmopt.stages.layers:write_layers", None,
            (_value("input_shapes"), _MODEL, _out_dir),
        ),
        Stage(
            "export", "tvmopt.stages.export:export", None,
            (_value("source"), _value("label"), _MODEL, _DATA, _out_dir, _progress),
        ),
        Stage(
            "golden", "tvmopt.stages.heldout:check_golden", None,
            (_BUNDLE, _value("metadata_sha256")),
        ),
        Stage(
            "heldout", "tvmopt.stages.heldout:measure_heldout", None,
            (_BUNDLE, _value("metadata_sha256"), _CONVERT, _DATA, _out_dir,
             _value("metric"), _value("metric_goal"), _value("metric_alphabet"),
             _value("metric_blank"), _value("board")),
        ),
    )
}  # fmt: skip
"""The stages by name."""
